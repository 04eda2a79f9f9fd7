"""`source`: a HuggingFace folder or hub id in, an `OpenedModel` out.

Registered as `huggingface` in the entry-point group `mobius.sources`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from mobius.sources import OpenedModel, SourceOptions
from mobius_components import ArchitectureConfig
from mobius_hf.architectures.base import Architecture
from mobius_hf.checkpoint import open_checkpoint
from mobius_hf.config import read_config
from mobius_hf.errors import CheckpointConfigError, CheckpointError
from mobius_hf.registry import find_architecture
from mobius_hf.repository import CONFIG, Repository, open_repository
from mobius_hf.tokenizer import copied_files
from mobius_hf.weights import map_weights

_logger = logging.getLogger(__name__)


class HuggingFaceSource:
    """Opens local folders in HuggingFace layout and models on the hub."""

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
        _check_task(raw, str(path))
        config = architecture.to_config(raw, path)
        return OpenedModel(
            name=model,
            revision=repository.revision,
            model_type=architecture.model_type,
            task=architecture.task,
            config=config,
            make_module=functools.partial(architecture.make_module, config),
            load_weights=functools.partial(_load_weights, repository, architecture, config, raw),
            files=copied_files(repository),
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
) -> dict[str, ir.TensorProtocol]:
    quantization = raw.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise CheckpointError(
            f"{repository.where} has quantized weights (quant_method {method!r}), which are not "
            "read yet. Use the checkpoint that it was quantized from, or build without weights."
        )
    return map_weights(architecture, config, open_checkpoint(repository))


source = HuggingFaceSource()
