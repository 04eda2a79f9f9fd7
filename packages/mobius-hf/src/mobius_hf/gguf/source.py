"""`source`: a GGUF file, or a folder with one, in; an `OpenedModel` out.

Registered as `gguf` in the entry-point group `mobius.sources`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from mobius.families import Family
from mobius.sources import OpenedModel, SourceOptions
from mobius_components import ArchitectureConfig
from mobius_hf.architectures.base import Architecture
from mobius_hf.errors import ModelNotFoundError
from mobius_hf.gguf.config import config_of, find_family
from mobius_hf.gguf.families import FAMILIES, GgufFamily
from mobius_hf.gguf.names import checkpoint_of
from mobius_hf.gguf.tensors import GgufFile, open_gguf
from mobius_hf.gguf.tokenizer import tokenizer_files
from mobius_hf.registry import find_architecture
from mobius_hf.repository import CONFIG
from mobius_hf.tokenizer import read_generation
from mobius_hf.weights import map_weights

SUFFIX = ".gguf"
_FIRST_PART = "-00001-of-"


class GgufSource:
    """Opens GGUF files."""

    def claims(self, model: str) -> bool:
        """Return whether `model` is a GGUF file, or a folder with one and without config.json."""
        path = Path(model).expanduser()
        if path.is_file():
            return path.suffix.casefold() == SUFFIX
        return path.is_dir() and not (path / CONFIG).is_file() and bool(_files(path))

    def families(self) -> tuple[Family, ...]:
        """Return the model types that GGUF files of are read."""
        names = sorted({family.model_type for family in FAMILIES.values()})
        return tuple(Family(model_type=name, source="gguf") for name in names)

    def open(self, model: str, options: SourceOptions) -> OpenedModel:
        """Return `model`, opened. Of its tensors only those that scale positions are read.

        Args:
            model: A GGUF file, the first of several parts, or a folder with one model.
            options: Not needed: nothing is fetched.

        Raises:
            ModelNotFoundError: if there is no such file, or more than one.
            UnknownModelTypeError: if no architecture is known for it.
            CheckpointConfigError: if its metadata cannot be built.
            CheckpointError: if it is damaged.
            GgufMissingError: if the library gguf is not installed.
        """
        del options
        file = open_gguf(_find(Path(model).expanduser()))
        family = find_family(file)
        raw = config_of(file, family)
        architecture = find_architecture(family.model_type, config=file.path, has_own_code=False)
        config = architecture.to_config(raw, file.path)
        return OpenedModel(
            name=model,
            revision=None,
            model_type=architecture.model_type,
            task=architecture.task,
            config=config,
            make_module=functools.partial(architecture.make_module, config),
            load_weights=functools.partial(_load_weights, file, family, raw, architecture, config),
            texts=tokenizer_files(file.metadata, raw),
            generation=read_generation(raw, ()),
        )


def _load_weights(
    file: GgufFile,
    family: GgufFamily,
    raw: Mapping[str, Any],
    architecture: Architecture,
    config: ArchitectureConfig,
) -> dict[str, ir.TensorProtocol]:
    return map_weights(architecture, config, checkpoint_of(file, family, raw))


def _files(folder: Path) -> list[Path]:
    """Return the models in a folder: of one in several parts, the first."""
    found = sorted(path for path in folder.iterdir() if path.suffix.casefold() == SUFFIX)
    return [path for path in found if "-of-" not in path.name or _FIRST_PART in path.name]


def _find(path: Path) -> Path:
    if path.is_file():
        return path
    files = _files(path) if path.is_dir() else []
    if len(files) == 1:
        return files[0]
    if files:
        listed = ", ".join(each.name for each in files)
        raise ModelNotFoundError(f"{path} has several models: {listed}. Name the file of one.")
    raise ModelNotFoundError(f"{path} is neither a GGUF file nor a folder with one.")


source = GgufSource()
