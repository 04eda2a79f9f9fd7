"""`source`: a HuggingFace folder or hub id in, an `OpenedModel` out.

Registered as `huggingface` in the entry-point group `mobius.sources`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from mobius.families import Family
from mobius.sources import OpenedModel, SourceOptions
from mobius_components import ArchitectureConfig
from mobius_hf.architectures.base import Architecture
from mobius_hf.checkpoint import open_checkpoint
from mobius_hf.config import read_config
from mobius_hf.errors import CheckpointConfigError
from mobius_hf.quantized import decode_checkpoint, expected_quantization
from mobius_hf.quantized.methods import find_method
from mobius_hf.reference import TransformersReference, open_reference
from mobius_hf.registry import find_architecture, supported_model_types
from mobius_hf.repository import CONFIG, Repository, open_repository
from mobius_hf.text_part import is_composite, text_config, text_tensors
from mobius_hf.tokenizer import copied_files, read_generation
from mobius_hf.verified import verified_families
from mobius_hf.weights import map_weights

_logger = logging.getLogger(__name__)


class HuggingFaceSource:
    """Opens local folders in HuggingFace layout and models on the hub."""

    def families(self) -> tuple[Family, ...]:
        """Return every supported model type, with what was measured of it."""
        return verified_families("huggingface")

    def open(self, model: str, options: SourceOptions) -> OpenedModel:
        """Return `model`, opened. Weights are found and fetched by `load_weights()`, not here.

        Args:
            model: A folder, or a hub id.
            options: Revision, access and cache of the hub; a folder needs none of them.

        Raises:
            ModelNotFoundError: if there is no such folder, repository, revision or config.json.
            HubError: if the hub refuses or cannot be reached.
            UnknownModelTypeError: if no architecture is known for its `model_type`.
            CheckpointConfigError: if config.json cannot be built.
        """
        repository = open_repository(model, options)
        path = repository.path(CONFIG)
        raw = read_config(path)
        has_own_code = bool(raw.get("auto_map"))
        is_text_part = is_composite(raw) and options.text_only
        if is_text_part:
            # Messages are about the object whose fields they name, where the file has one.
            inner = "text_config" if isinstance(raw.get("text_config"), Mapping) else ""
            raw, path = text_config(raw, path), path / inner
        elif is_composite(raw):
            _refuse_other_parts(raw, str(path))
        architecture = find_architecture(
            raw.get("model_type"), config=path, has_own_code=has_own_code
        )
        if has_own_code:
            _logger.warning(
                "%s names Python code of its own (auto_map). It is not run: the built-in "
                "architecture %r is used.",
                path,
                architecture.model_type,
            )
        if not is_text_part:
            _check_task(raw, str(path))
        config = architecture.to_config(raw, path)
        files = copied_files(repository)
        return OpenedModel(
            name=model,
            revision=repository.revision,
            model_type=architecture.model_type,
            task=architecture.task,
            config=config,
            make_module=functools.partial(architecture.make_module, config),
            load_weights=functools.partial(
                _load_weights, repository, architecture, config, raw, is_text_part=is_text_part
            ),
            files=files,
            generation=read_generation(raw, files),
            quantization=expected_quantization(raw),
        )

    def open_reference(self, model: str, options: SourceOptions) -> TransformersReference:
        """Return `model` as transformers runs it; see `mobius_hf.reference`."""
        return open_reference(model, options)


def _refuse_other_parts(raw: Mapping[str, Any], path: str) -> None:
    if str(raw.get("model_type")).replace("-", "_") in supported_model_types():
        return
    raise CheckpointConfigError(
        f"{path}: a {raw.get('model_type')!r} model has parts for images or sound, which are not "
        "built. To build its text part alone, pass text_only=True (--text-only on the command "
        "line)."
    )


def _check_task(raw: Mapping[str, Any], path: str) -> None:
    classes = raw.get("architectures")
    if classes and not any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in classes):
        raise CheckpointConfigError(
            f"{path}: architectures is {classes!r}, a model without a language-model head; "
            "needed: a class that ends in ForCausalLM."
        )


def _load_weights(
    repository: Repository,
    architecture: Architecture,
    config: ArchitectureConfig,
    raw: Mapping[str, Any],
    *,
    is_text_part: bool,
) -> dict[str, ir.TensorProtocol]:
    quantization = raw.get("quantization_config")
    if quantization:
        find_method(quantization, repository.where)  # before weights are fetched
    checkpoint = open_checkpoint(repository)
    tensors: Mapping[str, ir.TensorProtocol] = checkpoint
    if is_text_part:
        tensors = text_tensors(checkpoint)
    if quantization:
        tensors = decode_checkpoint(quantization, tensors, repository.where)
    return map_weights(architecture, config, tensors)


source = HuggingFaceSource()
