"""Checkpoint and architecture -> a tensor for each parameter name; nothing is read but ties."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from mobius_components import ArchitectureConfig
from mobius_hf.architectures.base import Architecture
from mobius_hf.errors import CheckpointError
from mobius_hf.mapped_tensor import MappedTensor
from mobius_hf.stacks import stack_experts

Tensors = Mapping[str, ir.TensorProtocol]

_CHUNK = 1 << 24


def map_weights(
    architecture: Architecture, config: ArchitectureConfig, checkpoint: Tensors
) -> dict[str, ir.TensorProtocol]:
    """Return the checkpoint's tensors by parameter name.

    Tensors of no known parameter keep their name, so that strict binding reports them.

    Raises:
        CheckpointError: if two tensors are for one parameter, or tied tensors differ.
    """
    sources: dict[str, str] = {}
    for tensor in checkpoint:
        parameter = architecture.parameter_name(tensor)
        if parameter is None or architecture.is_unused(parameter, config):
            continue
        if parameter in sources:
            raise CheckpointError(
                f"The tensors {sources[parameter]!r} and {tensor!r} are both for the parameter "
                f"{parameter!r}. Remove one of them from the checkpoint."
            )
        sources[parameter] = tensor
    if config.tie_word_embeddings:
        _tie(architecture, checkpoint, sources)
    tensors: dict[str, ir.TensorProtocol] = {}
    if config.moe is not None:
        experts = config.moe.num_experts
        tensors.update(stack_experts(architecture.stacks, experts, sources, checkpoint))
    for parameter, tensor in sources.items():
        for name, part in _transformed(architecture, parameter, checkpoint[tensor], config):
            if name in tensors:
                raise CheckpointError(
                    f"The tensor {tensor!r} is for the parameter {name!r}, which another tensor "
                    "is for too. Remove one of them from the checkpoint."
                )
            tensors[name] = part
    return tensors


def _transformed(
    architecture: Architecture,
    parameter: str,
    tensor: ir.TensorProtocol,
    config: ArchitectureConfig,
) -> Iterable[tuple[str, ir.TensorProtocol]]:
    """Return the parameters that a tensor becomes, by the family's first transform that fits."""
    for transform in architecture.transforms:
        match = re.fullmatch(transform.pattern, parameter)
        if match is not None:
            return transform.apply(match, tensor, config)
    return [(parameter, tensor.renamed(parameter) if isinstance(tensor, MappedTensor) else tensor)]


def _tie(architecture: Architecture, checkpoint: Tensors, sources: dict[str, str]) -> None:
    """Leave one of the two tied tensors: the embedding table.

    A file may store both, the table alone, or (as some writers drop duplicates) the head alone.
    """
    head = sources.pop(architecture.head, None)
    if head is None:
        return
    table = sources.setdefault(architecture.embedding, head)
    if table != head and not _same(checkpoint[table], checkpoint[head]):
        raise CheckpointError(
            f"config.json has tie_word_embeddings = true, but the checkpoint holds {head!r} and "
            f"{table!r} with different values. Either set tie_word_embeddings to false in "
            f"config.json to use both, or remove {head!r} from the checkpoint to use {table!r} "
            "for both."
        )


def _same(left: ir.TensorProtocol, right: ir.TensorProtocol) -> bool:
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    bytes_left = left.numpy().reshape(-1).view(np.uint8)
    bytes_right = right.numpy().reshape(-1).view(np.uint8)
    return all(
        np.array_equal(bytes_left[start : start + _CHUNK], bytes_right[start : start + _CHUNK])
        for start in range(0, bytes_left.size, _CHUNK)
    )
