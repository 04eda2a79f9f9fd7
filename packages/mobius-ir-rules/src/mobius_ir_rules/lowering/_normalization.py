"""What the two norms share: the axes and the type of their statistics, and casts between types."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.rule import refuse
from mobius_ir_rules.values import describe_node, describe_value, int_attribute, make, rank

_STASH_TYPES = (
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
    ir.DataType.DOUBLE,
)


def normalized_axes(node: ir.Node, x: ir.Value) -> tuple[int, ...]:
    """Return the axes from `axis` to the last, counted from the end: `(-2, -1)`.

    Raises:
        RefusedError: When `axis` counts from the front and the rank of `x` is not known, or it is
            not an axis of `x`.
    """
    axis, axes = int_attribute(node, "axis", -1), rank(x)
    if axis >= 0:
        if axes is None:
            refuse(
                f"{describe_node(node)} has axis = {axis} and the rank of {describe_value(x)} is "
                "not known; it is needed.",
                node,
            )
        axis -= axes
    if axis >= 0 or (axes is not None and -axis > axes):
        refuse(
            f"{describe_node(node)} has an axis that {describe_value(x)}, of rank {axes}, has "
            "not; one of its axes is needed.",
            node,
        )
    return tuple(range(axis, 0))


def statistics_dtype(node: ir.Node, x: ir.Value) -> ir.DataType:
    """Return the type in which the statistics are taken: that of `stash_type`, or double.

    Raises:
        RefusedError: When the type of `x` is not known or `stash_type` is no floating-point type.
    """
    if x.dtype is None:
        refuse(
            f"The element type of the input of {describe_node(node)} is not known; it is needed.",
            node,
        )
    stash = int_attribute(node, "stash_type", 1)
    if stash not in _STASH_TYPES:
        refuse(
            f"{describe_node(node)} has stash_type = {stash}; a floating-point type is needed.",
            node,
        )
    return ir.DataType.DOUBLE if x.dtype == ir.DataType.DOUBLE else ir.DataType(stash)


def statistics_shape(x: ir.Value, axes: Sequence[int]) -> ir.Shape | None:
    """Return the shape of one number a row, the reduced axes kept as 1."""
    if x.shape is None:
        return None
    return ir.Shape([*x.shape[: len(x.shape) - len(axes)], *(1 for _ in axes)])


def cast(op: RewriterContext, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return `x` in the type `dtype`: itself where it has it."""
    if x.dtype == dtype:
        return x
    return make(op, "Cast", [x], (dtype, x.shape), attributes={"to": int(dtype)})
