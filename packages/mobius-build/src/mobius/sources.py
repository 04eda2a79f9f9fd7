"""Where models come from: `open_model(name)` asks the installed sources for an `OpenedModel`.

`mobius` never imports upward. A source is an object registered under the entry-point group
`mobius.sources` (mobius-hf registers `huggingface`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

import onnx_ir as ir
from onnxscript import nn

from mobius.generation import GenerationSettings
from mobius.quantization import Quantization
from mobius_components import ArchitectureConfig
from mobius_eps import MobiusError

ENTRY_POINT_GROUP = "mobius.sources"
DEFAULT = "huggingface"


Progress = Callable[[int, int, str], None]


class SourceError(MobiusError, ValueError):
    """No source can open the model, or the named source is not installed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """How a source may look for a model.

    Attributes:
        revision: Branch, tag or commit of a hub repository; `None` means its default.
        token: Access token of a hub; `None` means the one that the machine has stored.
        cache_dir: Folder for downloaded files; `None` means the hub library's own.
        offline: Never touch the network.
        trust_remote_code: The caller trusts the checkpoint's own Python code. For sources that run
            such code; the HuggingFace source never does.
        text_only: Build the language model of a checkpoint that has more, and leave out the rest.
        progress: Called while files are downloaded with bytes done, bytes in total as far as it is
            known, and the name of a file; by one thread at a time.
    """

    revision: str | None = None
    token: str | None = None
    cache_dir: Path | None = None
    offline: bool = False
    trust_remote_code: bool = False
    text_only: bool = False
    progress: Progress | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenedModel:
    """A model that a source has found: what it is, how to make its module, where its weights are.

    Attributes:
        name: What the user asked for (a hub id or a folder).
        revision: The commit that was resolved, or `None` for a plain folder.
        model_type: The HuggingFace `model_type` that decided the architecture.
        task: Key of `mobius.tasks.TASKS`.
        config: The architecture, with `config.dtype` being the checkpoint's own dtype.
        make_module: Makes a new module; its parameter names are the keys of `load_weights()`.
        load_weights: Opens the checkpoint and maps every tensor that it holds to a parameter name.
            Tensors stay on disk until they are read. Not called when weights are not wanted.
        files: Tokenizer and generation files to be copied beside the graph, byte for byte.
        texts: Such files by name that are made when the package is saved.
        generation: Special tokens and search defaults; `None` if the source does not know them.
        quantization: Which weights the checkpoint says that it holds as integers, for a graph
            without weights; with weights, their tensors say it.
    """

    name: str
    revision: str | None
    model_type: str
    task: str
    config: ArchitectureConfig
    make_module: Callable[[], nn.Module]
    load_weights: Callable[[], Mapping[str, ir.TensorProtocol]]
    files: tuple[Path, ...] = ()
    texts: Mapping[str, Callable[[], str]] = dataclasses.field(default_factory=dict)
    generation: GenerationSettings | None = None
    quantization: Quantization | None = None


class Source(Protocol):
    """What an entry point of the group `mobius.sources` must load to."""

    def open(self, model: str, options: SourceOptions) -> OpenedModel:
        """Find `model` and return it opened; raise a `MobiusError` that says what is wrong."""
        ...


@runtime_checkable
class ClaimingSource(Source, Protocol):
    """A source of models that no other source reads, which says so."""

    def claims(self, model: str) -> bool:
        """Return whether `model` is for this source: a local file or folder, or one on a hub.

        Reads no file and asks no hub.
        """
        ...


def load_source(name: str) -> Source:
    """Return the source that is registered under `name`.

    Raises:
        SourceError: if no installed distribution registers it.
    """
    entry_points = metadata.entry_points(group=ENTRY_POINT_GROUP)
    for entry_point in entry_points:
        if entry_point.name == name:
            return cast(Source, entry_point.load())
    installed = sorted(entry_point.name for entry_point in entry_points)
    raise SourceError(
        f"No model source {name!r} is installed (installed: {installed}). "
        "Install the HuggingFace source with: pip install 'mobius-build[hf]'"
    )


def find_source(model: str) -> Source:
    """Return the source that claims `model`; the default one otherwise.

    Raises:
        SourceError: if the default source is not installed.
    """
    for name in sorted(metadata.entry_points(group=ENTRY_POINT_GROUP).names - {DEFAULT}):
        source = load_source(name)
        if isinstance(source, ClaimingSource) and source.claims(model):
            return source
    return load_source(DEFAULT)


def open_model(model: str, options: SourceOptions, *, source: str | None = None) -> OpenedModel:
    """Open `model` with the source called `source`, or the one that `find_source` finds.

    Raises:
        SourceError: if the source is not installed.
        MobiusError: whatever the source finds wrong with the model.
    """
    found = find_source(model) if source is None else load_source(source)
    return found.open(model, options)
