"""`source`: a GGUF file, a folder with one, or one on the hub, in; an `OpenedModel` out.

Registered as `gguf` in the entry-point group `mobius.sources`.
"""

from __future__ import annotations

import functools
from pathlib import Path

import onnx_ir as ir

from mobius.families import Family
from mobius.sources import OpenedModel, SourceOptions
from mobius_components import ArchitectureConfig
from mobius_hf.architectures.base import Architecture
from mobius_hf.errors import ModelNotFoundError
from mobius_hf.gguf.config import config_of
from mobius_hf.gguf.families import ALTERNATIVES, ARCHITECTURE, FAMILIES, find_family
from mobius_hf.gguf.family import GgufFamily
from mobius_hf.gguf.library import tensor_types
from mobius_hf.gguf.names import checkpoint_of
from mobius_hf.gguf.tensors import GgufFile, open_gguf, parts_of
from mobius_hf.gguf.tokenizer import tokenizer_files
from mobius_hf.registry import find_architecture
from mobius_hf.repository import CONFIG, FIRST_PART, GGUF_SUFFIX, Hub, looks_like_a_path
from mobius_hf.tokenizer import read_generation
from mobius_hf.weights import map_weights


class GgufSource:
    """Opens GGUF files."""

    def claims(self, model: str) -> bool:
        """Return whether `model` is a GGUF file, or a folder with one and without config.json.

        What does not exist here is one if its name is `owner/name/file.gguf`.
        """
        path = Path(model).expanduser()
        if path.is_file():
            return path.suffix.casefold() == GGUF_SUFFIX
        if path.is_dir():
            return not (path / CONFIG).is_file() and bool(_files(path))
        return _on_the_hub(model) is not None

    def families(self) -> tuple[Family, ...]:
        """Return the model types that GGUF files of are read."""
        others = (family for _, family in ALTERNATIVES.values())
        names = sorted({family.model_type for family in (*FAMILIES.values(), *others)})
        return tuple(Family(model_type=name, source="gguf") for name in names)

    def open(self, model: str, options: SourceOptions) -> OpenedModel:
        """Return `model`, opened. Of its tensors only those that scale positions are read.

        Args:
            model: A GGUF file, the first of several parts, a folder with one model, or the name of
                a file on the hub: `owner/name/file.gguf`.
            options: Revision, access and cache of the hub; files here need none of them.

        Raises:
            ModelNotFoundError: if there is no such file, repository or revision, or more than one
                file.
            HubError: if the hub refuses or cannot be reached.
            UnknownModelTypeError: if no architecture is known for it.
            CheckpointConfigError: if its metadata cannot be built.
            CheckpointError: if it is damaged.
            GgufMissingError: if the library gguf is not installed.
        """
        path, revision = _find(model, options)
        file = open_gguf(path)
        family = find_family(file)
        raw = config_of(file, family)
        length = file.metadata[f"{file.metadata[ARCHITECTURE]}.context_length"]
        architecture = find_architecture(family.model_type, config=file.path, has_own_code=False)
        config = architecture.to_config(raw, file.path)
        return OpenedModel(
            name=model,
            revision=revision,
            model_type=architecture.model_type,
            task=architecture.task,
            config=config,
            make_module=functools.partial(architecture.make_module, config),
            load_weights=functools.partial(_load_weights, file, family, architecture, config),
            texts=tokenizer_files(file.metadata, {**raw, "max_position_embeddings": length}),
            generation=read_generation(raw, ()),
        )


def _load_weights(
    file: GgufFile,
    family: GgufFamily,
    architecture: Architecture,
    config: ArchitectureConfig,
) -> dict[str, ir.TensorProtocol]:
    return map_weights(architecture, config, checkpoint_of(file, family))


def _files(folder: Path) -> list[Path]:
    """Return the models in a folder: of one in several parts, the first."""
    found = sorted(path for path in folder.iterdir() if path.suffix.casefold() == GGUF_SUFFIX)
    return [path for path in found if "-of-" not in path.name or FIRST_PART in path.name]


def _on_the_hub(model: str) -> tuple[str, str] | None:
    """Return repository and file of a name on the hub, `None` if it is none."""
    parts = model.split("/", 2)
    repository = "/".join(parts[:2])
    if len(parts) < 3 or looks_like_a_path(repository):
        return None
    return (repository, parts[2]) if parts[2].casefold().endswith(GGUF_SUFFIX) else None


def _find(model: str, options: SourceOptions) -> tuple[Path, str | None]:
    """Return the file on disk, fetched if it is on the hub, and the commit that it is of there."""
    path = Path(model).expanduser()
    if path.is_file():
        return path, None
    named = None if path.exists() else _on_the_hub(model)
    if named is not None:
        name, file = named
        tensor_types()  # whether it can be read at all is known before it is fetched
        repository = Hub(name, options, first=file)
        repository.paths(parts_of(file))
        return repository.path(file), repository.revision
    files = _files(path) if path.is_dir() else []
    if len(files) == 1:
        return files[0], None
    if files:
        listed = ", ".join(each.name for each in files)
        raise ModelNotFoundError(f"{path} has several models: {listed}. Name the file of one.")
    raise ModelNotFoundError(f"{path} is neither a GGUF file nor a folder with one.")


source = GgufSource()
