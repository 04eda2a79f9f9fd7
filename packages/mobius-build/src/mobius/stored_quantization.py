"""Weights that a checkpoint holds as integers already: which they are, and that they stay so.

A source hands such a weight over as a `BlockQuantizedTensor`. What a family makes of it on the way
to a parameter, rows of it for instance, is a tensor of floats to everyone else;
`as_quantized` finds the integers again. `StoredQuantization` then has the graph read integers where
there are some, of the very format, so that they are written as they are.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from mobius.streaming import WeightTensor
from mobius_ir_rules.block_quantization import BlockFormat
from mobius_ir_rules.expressions import Expression, Leaf, Reshape, Slice
from mobius_ir_rules.lazy import DerivedTensor
from mobius_ir_rules.passes.weight_uses import WeightUse
from mobius_ir_rules.quantized_weights import BlockQuantizedTensor, QuantizedWeight

__all__ = ["StoredQuantization", "as_quantized", "stored_quantization"]


@dataclasses.dataclass(frozen=True)
class StoredQuantization:
    """Quantizes what the checkpoint has quantized, in its own format.

    Attributes:
        formats: The format of each weight that is stored as integers, by parameter name.
        accuracy_level: See `mobius.QuantizationConfig`.
    """

    formats: Mapping[str, BlockFormat]
    accuracy_level: int | None = None

    def choose(self, use: WeightUse) -> BlockFormat | str | None:
        """Return the format of a weight; why not, where its parts are not alike; or `None`."""
        found = {self.formats.get(name) for name in use.names}
        if len(found) == 1:
            return found.pop()
        shown = ", ".join("floats" if form is None else str(form) for form in found)
        return f"The checkpoint holds parts of the weight as {shown}; one format is needed."

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        counts = collections.Counter(self.formats.values())
        return {
            "stored": [
                {**dataclasses.asdict(form), "weights": count} for form, count in counts.items()
            ]
        }


def stored_quantization(tensors: Mapping[str, ir.TensorProtocol]) -> StoredQuantization | None:
    """Return the quantization of a checkpoint's tensors; `None` if none is stored as integers.

    Args:
        tensors: By parameter name.
    """
    formats = {
        name: found.weight.form
        for name, tensor in tensors.items()
        if (found := as_quantized(tensor)) is not None
    }
    return StoredQuantization(formats) if formats else None


def as_quantized(tensor: ir.TensorProtocol) -> BlockQuantizedTensor | None:
    """Return the tensor as integers and scales, if it is stored so, or is rows of one that is."""
    if isinstance(tensor, BlockQuantizedTensor):
        return tensor
    if isinstance(tensor, WeightTensor) and tensor.dtype is tensor.source.dtype:
        return as_quantized(tensor.source)
    if not isinstance(tensor, DerivedTensor) or len(tensor.shape) != 2:
        return None
    whole = _only_leaf(tensor.expression)
    if whole is None or len(whole.shape) != 2:
        return None
    weight = whole.weight
    parts = [weight.packed, weight.scales, weight.zero_points]
    rows = [None if part is None else _same_rows(tensor.expression, _flat(part)) for part in parts]
    packed, scales, zero_points = rows
    if packed is None or scales is None:
        return None
    blocks = packed.shape[1] // weight.form.block_bytes
    packed = Reshape(packed, (packed.shape[0], blocks, weight.form.block_bytes))
    return BlockQuantizedTensor(
        QuantizedWeight(weight.form, weight.k, packed, scales, zero_points), tensor.name
    )


def _only_leaf(expression: Expression) -> BlockQuantizedTensor | None:
    leaves = set(expression.leaves())
    value = leaves.pop() if len(leaves) == 1 else None
    return None if value is None or value.const_value is None else as_quantized(value.const_value)


def _flat(part: Expression) -> Expression:
    """Return a part of a weight with an axis for each row and one for what belongs to it."""
    rows = part.shape[0]
    size = 1
    for dim in part.shape[1:]:
        size *= dim
    return Reshape(part, (rows, size))


def _same_rows(expression: Expression, part: Expression) -> Expression | None:
    """Return the rows of `part` that `expression` takes of its leaf, if it takes whole rows."""
    if isinstance(expression, Leaf):
        return part
    if isinstance(expression, Reshape):
        source = _same_rows(expression.source, part)
        keeps = expression.shape[-1] == expression.source.shape[-1]
        if source is None or not keeps:
            return None
        return Reshape(source, (*expression.shape[:-1], source.shape[-1]))
    if isinstance(expression, Slice):
        source = _same_rows(expression.source, part)
        keeps = expression.shape[-1] == expression.source.shape[-1]
        if source is None or not keeps or len(expression.shape) < 2:
            return None
        return Slice(source, (*expression.slices[:-1], slice(None)))
    return None
