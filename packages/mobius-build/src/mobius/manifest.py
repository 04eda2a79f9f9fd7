"""`mobius.json`: what a saved package holds and how it was made, as a value and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import PurePosixPath
from typing import Any, Literal, cast

from mobius.errors import PackageLoadError

__all__ = [
    "MANIFEST_NAME",
    "GenerationEntry",
    "Manifest",
    "ModelEntry",
    "RuntimeOptions",
    "SourceInfo",
    "installed_versions",
]

MANIFEST_NAME = "mobius.json"
FORMAT = "mobius-package"
FORMAT_VERSION = 1

Padding = Literal["any", "right"]

_DAMAGED = "The package is damaged or not one of Mobius; build it again."

_DISTRIBUTIONS = (
    "mobius-build",
    "mobius-components",
    "mobius-eps",
    "mobius-hf",
    "mobius-ir-rules",
    "onnx-ir",
    "onnxscript",
)


@dataclasses.dataclass(frozen=True)
class SourceInfo:
    """Where a model came from.

    Attributes:
        name: Hub id, or folder, as the user gave it; a manifest has a folder's name only.
        revision: The resolved commit, or `None` for a plain folder.
    """

    name: str
    revision: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuntimeOptions:
    """What a runtime's configuration of the package starts from.

    Attributes:
        provider_options: Options of the execution provider.
        graph_capture: Whether the runtime may capture the graph on the GPU.
        int4_accuracy_level: `accuracy_level` of MatMulNBits where the user gives none.
    """

    provider_options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    graph_capture: bool = False
    int4_accuracy_level: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationEntry:
    """How a text decoder is run.

    Attributes:
        context_length: Longest text, prompt included, in tokens.
        shared_cache: Past and present keys, and values, may be one buffer for the longest text.
        bos_token_id: Starts a text, if the model has such a token.
        eos_token_ids: Each of them ends a text.
        pad_token_id: Fills shorter rows, if the model has a token for it.
        search: How the next token is chosen, where the checkpoint says so.
        recompute_length: Longest text whose cache can be kept when the text becomes longer, if
            there is one: LongRoPE has other angles from there on, so a longer text is read again
            from its start, as transformers does for Phi 3.
        genai_refusal: Why there is no `genai_config.json`; `None` if there is one.
    """

    context_length: int
    shared_cache: bool
    bos_token_id: int | None = None
    eos_token_ids: Sequence[int] = ()
    pad_token_id: int | None = None
    search: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    recompute_length: int | None = None
    genai_refusal: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """One graph of a package.

    Attributes:
        path: The `.onnx` file, relative to the package, with forward slashes.
        data: The external data file that was written, or `None` where there is none.
        role: Role that the graph was optimised for.
        ir_version: ONNX IR version of the file.
        opset_imports: Version of each operator domain.
        optimization: What each stage applied and left alone; `None` if the graph was not optimised.
        references: Files of the checkpoint whose bytes the graph uses too.
    """

    path: str
    data: str | None
    role: str
    ir_version: int
    opset_imports: Mapping[str, int]
    optimization: Mapping[str, Any] | None = None
    references: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What `mobius.json` says. It holds no time and no machine, so equal builds are equal files.

    Attributes:
        models: Each graph by its key.
        execution_provider: Name of the EP that the graphs were built for.
        dtype: ONNX name of the element type of weights and activations, if known.
        source: Where the model came from, if from a source.
        quantization: How weights were made integers, if they were.
        padding: `"right"` if rows must be right-padded (a graph has GroupQueryAttention that takes
            a row's real tokens to start at slot 0), `"any"` otherwise: attention follows the mask.
        weights: Whether the external data was written.
        files: Tokenizer and generation files beside the graphs.
        versions: Version of each distribution that took part.
        runtime: What a runtime's configuration starts from, if the graphs were built for an EP.
        generation: How text is generated, if the package is one text decoder.
    """

    models: Mapping[str, ModelEntry]
    execution_provider: str
    dtype: str | None
    source: SourceInfo | None
    padding: Padding
    weights: bool
    files: Sequence[str] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    runtime: RuntimeOptions | None = None
    generation: GenerationEntry | None = None
    quantization: Mapping[str, Any] | None = None

    def to_json(self) -> str:
        """Return the text of `mobius.json`; equal manifests give equal text."""
        content = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            **dataclasses.asdict(self),
        }
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, *, where: str) -> Manifest:
        """Read a manifest.

        Args:
            text: Content of a `mobius.json`.
            where: Its path, for messages.

        Raises:
            PackageLoadError: naming the field that is wrong and what is needed.
        """
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise PackageLoadError(
                f"{where} is not JSON ({error}). The package is damaged; build it again."
            ) from error
        reader = _Reader(content, where)
        if reader.get("format", str) != FORMAT:
            raise reader.error("format", f"{content['format']!r}", f"{FORMAT!r}")
        version = reader.get("format_version", int)
        if version != FORMAT_VERSION:
            versions = reader.find("versions", dict) or {}
            raise PackageLoadError(
                f"{where} has format_version {version}; this version of Mobius reads "
                f"{FORMAT_VERSION}. Install the Mobius that wrote it "
                f"(mobius-build {versions.get('mobius-build', '?')}), or build the package again."
            )
        padding = reader.get("padding", str)
        if padding not in ("any", "right"):
            raise reader.error("padding", repr(padding), "'any' or 'right'")
        source = reader.get("source", dict, optional=True)
        runtime = reader.find("runtime", dict)
        generation = reader.find("generation", dict)
        models = reader.get("models", dict)
        if not models:
            raise reader.error("models", "no entry", "at least one graph")
        return cls(
            models={key: _read_entry(models[key], f"{where}: models.{key}") for key in models},
            execution_provider=reader.get("execution_provider", str),
            dtype=reader.get("dtype", str, optional=True),
            source=None if source is None else _read_source(source, f"{where}: source"),
            padding=cast(Padding, padding),
            weights=reader.get("weights", bool),
            files=tuple(
                _inside(name, f"{where}: files") for name in reader.find("files", list) or ()
            ),
            versions=reader.find("versions", dict) or {},
            runtime=None if runtime is None else _read_runtime(runtime, f"{where}: runtime"),
            generation=(
                None if generation is None else _read_generation(generation, f"{where}: generation")
            ),
            quantization=reader.find("quantization", dict),
        )


def installed_versions() -> dict[str, str]:
    """Return the version of each distribution that takes part in a build and is installed."""
    installed = {}
    for name in _DISTRIBUTIONS:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # mobius-hf is optional
    return installed


class _Reader:
    """Typed access to the fields of a JSON object."""

    def __init__(self, content: object, where: str) -> None:
        self._where = where
        if not isinstance(content, dict):
            raise PackageLoadError(
                f"{where} holds {type(content).__name__}, not a JSON object. {_DAMAGED}"
            )
        self._content = content

    def get(self, field: str, kind: type, *, optional: bool = False) -> Any:
        if field not in self._content:
            raise self.error(field, "nothing", kind.__name__)
        value = self._content[field]
        if optional and value is None:
            return None
        # bool is an int to isinstance, and JSON's 1 is not true
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.error(field, repr(value), kind.__name__)
        return value

    def find(self, field: str, kind: type) -> Any:
        """Return the value of a field that has a default: an older Mobius did not write all."""
        return None if self._content.get(field) is None else self.get(field, kind)

    def error(self, field: str, found: str, needed: str) -> PackageLoadError:
        return PackageLoadError(
            f"{self._where}: field {field!r} is {found}, needs {needed}. {_DAMAGED}"
        )


def _read_source(content: Mapping[str, Any], where: str) -> SourceInfo:
    reader = _Reader(content, where)
    return SourceInfo(reader.get("name", str), reader.get("revision", str, optional=True))


def _read_runtime(content: Mapping[str, Any], where: str) -> RuntimeOptions:
    reader = _Reader(content, where)
    return RuntimeOptions(
        provider_options=reader.get("provider_options", dict),
        graph_capture=reader.get("graph_capture", bool),
        int4_accuracy_level=reader.get("int4_accuracy_level", int),
    )


def _read_generation(content: Mapping[str, Any], where: str) -> GenerationEntry:
    reader = _Reader(content, where)
    return GenerationEntry(
        context_length=reader.get("context_length", int),
        shared_cache=reader.get("shared_cache", bool),
        bos_token_id=reader.find("bos_token_id", int),
        eos_token_ids=tuple(reader.find("eos_token_ids", list) or ()),
        pad_token_id=reader.find("pad_token_id", int),
        search=reader.find("search", dict) or {},
        recompute_length=reader.find("recompute_length", int),
        genai_refusal=reader.find("genai_refusal", str),
    )


def _read_entry(content: object, where: str) -> ModelEntry:
    reader = _Reader(content, where)
    data = reader.get("data", str, optional=True)
    return ModelEntry(
        path=_inside(reader.get("path", str), where),
        data=None if data is None else _inside(data, where),
        role=reader.get("role", str),
        ir_version=reader.get("ir_version", int),
        opset_imports=reader.get("opset_imports", dict),
        optimization=reader.find("optimization", dict),
        references=tuple(_inside(name, where) for name in reader.find("references", list) or ()),
    )


def _inside(path: object, where: str) -> str:
    """Return `path` if it is relative and stays inside the package."""
    if isinstance(path, str) and path and "\\" not in path:
        parts = PurePosixPath(path)
        if not parts.is_absolute() and ".." not in parts.parts and ":" not in parts.parts[0]:
            return path
    raise PackageLoadError(f"{where}: {path!r} is not a path inside the package. {_DAMAGED}")
