"""`oversized(model, target)`: a sentence for each limit of a target that tensors of a model pass.

Nothing is changed: whether a device holds more than is guaranteed, or a newer runtime counts
further, is not known when a graph is built.
"""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from mobius.stage import Target
from mobius_ir_rules.passes.graphs import values_of

_SHOWN = 3
_PRODUCTS = frozenset(
    {"FusedMatMul", "Gemm", "MatMul", "MatMulNBits", "MoE", "QMoE", "RoutedExperts"}
)
"""Operators that address a weight by rows and matrices, however many elements it has."""
_NO_SIZE = (ir.DataType.STRING, ir.DataType.UNDEFINED)


@dataclasses.dataclass(frozen=True)
class _Tensor:
    """A value whose size is known."""

    value: ir.Value
    elements: int
    bytes: int

    def __str__(self) -> str:
        assert self.value.dtype is not None
        return (
            f"{self.value.name!r} {self.value.dtype.name} {self.value.shape}, "
            f"{self.elements:,} elements, {self.bytes:,} bytes"
        )


def oversized(model: ir.Model, target: Target) -> list[str]:
    """Return a warning for each limit, with the largest tensors beyond it and the way out.

    Args:
        model: The model after the last phase.
        target: What it is built for.
    """
    capabilities = target.capabilities
    buffer, most = capabilities.max_buffer_bytes, capabilities.max_tensor_elements
    if buffer is None and most is None:
        return []
    measured = (_measured(value) for value in values_of(model.graph))
    tensors = sorted((each for each in measured if each is not None), key=lambda each: -each.bytes)
    name = capabilities.name
    warnings = []
    if buffer is not None and (beyond := [each for each in tensors if each.bytes > buffer]):
        warnings.append(
            f"{_count(beyond)} larger than {buffer:,} bytes, the most that every device of "
            f"ep={name!r} holds in one buffer; one with smaller buffers refuses the model or runs "
            f"the node on the CPU: {_list(beyond)}. Build in a narrower dtype, quantize the "
            "weights, or make sure of the devices' limit."
        )
    counted = [each for each in tensors if most is not None and each.elements > most]
    if beyond := [each for each in counted if _is_counted(each.value)]:
        warnings.append(
            f"{_count(beyond)} of more than {most:,} elements, the most that the kernels of "
            f"ep={name!r} count right; rows beyond may be read from elsewhere: {_list(beyond)}. "
            "Use a runtime that counts further (ONNX Runtime 1.27 or later for Gather), or split "
            "the table."
        )
    return warnings


def _measured(value: ir.Value) -> _Tensor | None:
    """Return the size of a value of which every dimension is known."""
    dtype, shape = value.dtype, value.shape
    if shape is None or dtype is None or dtype in _NO_SIZE:
        return None
    sizes = [dim for dim in shape if isinstance(dim, int)]
    if len(sizes) != len(shape):
        return None
    elements = math.prod(sizes)
    return _Tensor(value, elements, -(-elements * dtype.bitwidth // 8))


def _is_counted(value: ir.Value) -> bool:
    """Return whether a kernel may count the elements one by one, as that of Gather does."""
    made = value.producer() is not None
    return made or any(use.node.op_type not in _PRODUCTS for use in value.uses())


def _count(tensors: list[_Tensor]) -> str:
    return "1 tensor is" if len(tensors) == 1 else f"{len(tensors)} tensors are"


def _list(tensors: list[_Tensor]) -> str:
    more = [f"and {len(tensors) - _SHOWN} more"] if len(tensors) > _SHOWN else []
    return "; ".join([*(str(tensor) for tensor in tensors[:_SHOWN]), *more])
