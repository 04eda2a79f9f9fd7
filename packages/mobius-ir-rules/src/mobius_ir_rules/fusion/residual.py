"""What both norm fusions must prove: an Add of two equal shapes, a norm over the last axis.

ONNX Runtime's Skip* kernels take `input` and `skip` of one shape and one float type, and normalise
the last axis of size `hidden` with a `gamma` of shape `[hidden]`. The CPU kernel broadcasts some
`skip` shapes and the CUDA kernel refuses the same ones, so equal shapes are required.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from mobius_ir_rules.rule import refuse
from mobius_ir_rules.values import (
    available_at,
    describe_node,
    describe_value,
    int_attribute,
    is_binary,
    is_used,
)

DTYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
"""Types that the schemas of the Skip* operators allow."""


def norms_of(add: ir.Node, op_type: str) -> list[ir.Node]:
    """Return the nodes `op_type` in the graph of `add` that normalise its result, in use order."""
    if not is_binary(add):
        return []
    return [
        use.node
        for use in add.outputs[0].uses()
        if use.idx == 0
        and (use.node.domain, use.node.op_type) == ("", op_type)
        and use.node.graph is add.graph
    ]


def require_fusable(add: ir.Node, norm: ir.Node, ranks: Collection[int]) -> None:
    """Refuse unless the residual Add and the norm are what the Skip* kernels compute.

    Args:
        add: The residual Add.
        norm: RMSNormalization or LayerNormalization of the Add's result.
        ranks: Ranks that the operator's schema allows.

    Raises:
        RefusedError: When a type, a shape, the axis or the precision is not provably right.
    """
    left, right = add.inputs
    _require_dtype(add, norm, left, right)
    shape = _require_equal_shapes(add, left, right, ranks)
    axis = int_attribute(norm, "axis", -1)
    if axis not in (-1, len(shape) - 1):
        refuse(
            f"{describe_node(norm)} has axis={axis} on rank {len(shape)}; the last axis alone is "
            "needed.",
            norm,
        )
    stash_type = int_attribute(norm, "stash_type", 1)
    if stash_type != ir.DataType.FLOAT:
        refuse(
            f"{describe_node(norm)} has stash_type={stash_type}; the fused kernels compute in "
            "float32, stash_type=1 is needed.",
            norm,
        )
    for output in norm.outputs[1:]:
        if is_used(output):
            refuse(
                f"The statistics '{output.name}' of {describe_node(norm)} are used; the fused "
                "kernels of some execution providers make none.",
                norm,
            )


def require_vector(value: ir.Value | None, what: str, add: ir.Node, norm: ir.Node) -> None:
    """Refuse unless `value` is `[hidden]`, of the Add's type, and made before the Add.

    Raises:
        RefusedError: When it is not provably so.
    """
    left = add.inputs[0]
    assert left is not None
    assert left.shape is not None
    hidden = left.shape[-1]
    if value is None or value.shape is None:
        refuse(
            f"The {what} of {describe_node(norm)} is {describe_value(value)} with an unknown "
            f"shape; [{hidden}] is needed.",
            norm,
        )
    if len(value.shape) != 1 or not _equal(value.shape[0], hidden):
        refuse(
            f"The {what} of {describe_node(norm)} has shape {value.shape}; [{hidden}] is needed.",
            norm,
        )
    if value.dtype != left.dtype:
        refuse(
            f"The {what} of {describe_node(norm)} has type {value.dtype}; the type of the Add's "
            f"inputs, {left.dtype}, is needed.",
            norm,
        )
    if not available_at(value, add):
        refuse(
            f"The {what} of {describe_node(norm)} is {describe_value(value)}, after "
            f"{describe_node(add)}; it must exist where the sum is made.",
            norm,
        )


def _require_dtype(
    add: ir.Node, norm: ir.Node, left: ir.Value | None, right: ir.Value | None
) -> None:
    for value in (left, right):
        if value is None or value.dtype not in DTYPES:
            dtype = None if value is None else value.dtype
            refuse(
                f"An input of {describe_node(add)} has type {dtype or 'unknown'}; FLOAT, FLOAT16 "
                f"or BFLOAT16 is needed to fuse {describe_node(norm)}.",
                add,
            )


def _require_equal_shapes(
    add: ir.Node, left: ir.Value | None, right: ir.Value | None, ranks: Collection[int]
) -> ir.Shape:
    shapes = [None if value is None else value.shape for value in (left, right)]
    first, second = shapes
    needed = f"two equal shapes of rank {' or '.join(map(str, sorted(ranks)))} are needed"
    if first is None or second is None:
        refuse(f"An input of {describe_node(add)} has an unknown shape; {needed}.", add)
    if len(first) != len(second) or len(first) not in ranks or not all(map(_equal, first, second)):
        refuse(f"{describe_node(add)} adds {first} and {second}; {needed}.", add)
    return first


def _equal(left: int | ir.SymbolicDim, right: int | ir.SymbolicDim) -> bool:
    """Return whether two dimensions are provably equal; unknown ones are not."""
    if isinstance(left, int) or isinstance(right, int):
        return left == right
    return left.value is not None and left.value == right.value
