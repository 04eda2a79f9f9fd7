"""Body of `com.microsoft::FusedMatMul`: `Y = alpha * (A' @ B')`, transposes chosen by attributes.

`A` and `B` have one float type and rank 2 or more, batch dimensions broadcast as in MatMul. With
`transBatchA`, dimension 0 of `A` is moved behind the others but the last; with `transA`, the last
two dimensions are then exchanged; likewise for `B`. The rank is not known to the body, so a
transpose works on three dimensions (Reshape, Transpose, Reshape) and stands in the branch of an
`If` whose condition is a constant once the body has been inlined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.body import float_attribute, int_attribute, make_function
from mobius_ir_rules.values import MICROSOFT

FUSED_MAT_MUL = (MICROSOFT, "FusedMatMul")


def fused_mat_mul(opset_version: int) -> ir.Function:
    """Return the body of FusedMatMul for `opset_version`."""

    def body(op: OpBuilder, a: ir.Value, b: ir.Value) -> Any:
        left = _transpose_if(op, "transA", _move_first_if(op, "transBatchA", a))
        right = _transpose_if(op, "transB", _move_first_if(op, "transBatchB", b))
        product = op.MatMul(left, right)
        return op.Mul(product, op.CastLike(float_attribute(op, "alpha"), product))

    attributes = [
        ir.AttrFloat32("alpha", 1.0),
        *(ir.AttrInt64(name, 0) for name in ("transA", "transB", "transBatchA", "transBatchB")),
    ]
    return make_function(FUSED_MAT_MUL, ["A", "B"], ["Y"], attributes, body, opset_version)


def _transpose_if(op: OpBuilder, attribute: str, x: ir.Value) -> Any:
    """Return `x` with its last two dimensions exchanged where `attribute` is not zero."""

    def transposed(inner: OpBuilder) -> Any:
        shape = inner.Shape(x)
        batch = inner.Slice(shape, _ints(inner, 0), _ints(inner, -2))
        rows, columns = inner.Shape(x, start=-2, end=-1), inner.Shape(x, start=-1)
        flat = _reshape(inner, x, _product(inner, batch), rows, columns)
        return _reshape(inner, inner.Transpose(flat, perm=[0, 2, 1]), batch, columns, rows)

    return _choose(op, attribute, transposed, x)


def _move_first_if(op: OpBuilder, attribute: str, x: ir.Value) -> Any:
    """Return `x` with dimension 0 moved before the last one where `attribute` is not zero."""

    def moved(inner: OpBuilder) -> Any:
        shape = inner.Shape(x)
        batch = inner.Slice(shape, _ints(inner, 1), _ints(inner, -1))
        first, last = inner.Shape(x, start=0, end=1), inner.Shape(x, start=-1)
        flat = _reshape(inner, x, first, _product(inner, batch), last)
        return _reshape(inner, inner.Transpose(flat, perm=[1, 0, 2]), batch, first, last)

    return _choose(op, attribute, moved, x)


def _choose(
    op: OpBuilder, attribute: str, chosen: Callable[[OpBuilder], Any], otherwise: ir.Value
) -> Any:
    """Return `chosen` where the function's attribute is not zero, `otherwise` where it is."""
    branches = {
        "then_branch": op.builder.subgraph(
            chosen, [], [ir.Value(name=f"{attribute}_chosen")], name=f"{attribute}_then"
        ),
        "else_branch": op.builder.subgraph(
            lambda inner: inner.Identity(otherwise),
            [],
            [ir.Value(name=f"{attribute}_otherwise")],
            name=f"{attribute}_else",
        ),
    }
    return op.If(op.Cast(int_attribute(op, attribute), to=ir.DataType.BOOL), **branches)


def _reshape(op: OpBuilder, x: ir.Value, *sizes: ir.Value) -> Any:
    # allowzero: an empty batch has a size of zero, which otherwise means "keep the dimension".
    return op.Reshape(x, op.Concat(*sizes, axis=0), allowzero=1)


def _product(op: OpBuilder, sizes: ir.Value) -> Any:
    """Return the product as a one-element vector, 1 where there are no sizes."""
    return op.ReduceProd(sizes, keepdims=1)


def _ints(op: OpBuilder, *values: int) -> Any:
    return op.Constant(value_ints=list(values))
