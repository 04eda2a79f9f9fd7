"""RotaryEmbedding: a rotation by halves written out in primitives -> the standard operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import RewriterContext, RewriteRule

from mobius_ir_rules.fusion._normalized import require_opset
from mobius_ir_rules.fusion._shape_vectors import dims
from mobius_ir_rules.fusion.polynomial import scalar
from mobius_ir_rules.passes.constants import constant_array, constant_ints
from mobius_ir_rules.rule import Plan, Rule, refuse
from mobius_ir_rules.values import (
    describe_node,
    describe_value,
    input_at,
    int_attribute,
    is_binary,
    like,
    make,
    make_int64s,
    producer_of,
    rank,
    static_dim,
)

OLDEST_OPSET = 23
"""First opset with RotaryEmbedding."""

DTYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

_ELEMENTWISE = ("Cos", "Sin", "Cast", "Identity", "Neg")
_DEPTH = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class _RotaryPlan(Plan):
    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    half: int
    shared_rows: bool


class RotaryFusion(Rule):
    """Fuse the rotation that transformers writes, `x * cos + rotate_half(x) * sin`.

    Before, with `x` `[B, heads, S, D]` and `cos`, `sin` `[B or 1, 1, S, D]`:

        half = Concat <axis = -1> (Neg(x[..., D/2:]), x[..., :D/2])
        y = Add(Mul(x, cos), Mul(half, sin))

    After:

        y = RotaryEmbedding(x, Squeeze(cos, [1])[..., :D/2], Squeeze(sin, [1])[..., :D/2])

    The halves of `x` come from two Slices or one Split. The operator has tables of half the width,
    so both halves of `cos` and of `sin` must provably be equal: elementwise functions of a Concat
    of one value with itself, or a small constant. Tables with one row for the whole batch are
    expanded, because the operator wants one for each. The new nodes for the tables are equal for
    query, key and every layer; common subexpression elimination leaves one copy.
    """

    roots = (("", "Add"),)
    emits = (("", "RotaryEmbedding"),)

    def plan(self, node: ir.Node) -> _RotaryPlan | None:
        """Return what to do with the sum, `None` where it is no rotation."""
        found = _rotation(node)
        if found is None:
            return None
        x, cos, sin, half, absorbed = found
        sizes = dims(x)
        width = static_dim(x, 3)
        if sizes is None or len(sizes) != 4 or width != 2 * half:
            refuse(
                f"{describe_node(node)} rotates {'an unknown shape' if sizes is None else x.shape} "
                f"by {half}; [batch, heads, length, {2 * half}] is needed.",
                node,
            )
        if x.dtype not in DTYPES or cos.dtype != x.dtype or sin.dtype != x.dtype:
            refuse(
                f"{describe_node(node)} rotates {x.dtype or 'unknown'} by tables of "
                f"{cos.dtype or 'unknown'} and {sin.dtype or 'unknown'}; one type of FLOAT, "
                "FLOAT16 and BFLOAT16 is needed.",
                node,
            )
        shared = [_shares_rows(node, table, x) for table in (cos, sin)]
        if shared[0] != shared[1]:
            refuse(
                f"The tables of {describe_node(node)} have the shapes {cos.shape} and "
                f"{sin.shape}; equal ones are needed.",
                node,
            )
        for table in (cos, sin):
            if not _halves_equal(table):
                refuse(
                    f"A table of {describe_node(node)} is {describe_value(table)}; its two halves "
                    "must provably be equal, made by a Concat of one value with itself.",
                    node,
                )
        require_opset(node, "RotaryEmbedding", OLDEST_OPSET)
        return _RotaryPlan(
            root=node,
            replaced=(node.outputs[0],),
            absorbed=absorbed,
            x=x,
            cos=cos,
            sin=sin,
            half=half,
            shared_rows=shared[0],
        )

    def emit(self, op: RewriterContext, plan: _RotaryPlan) -> Sequence[ir.Value]:
        """Make the tables of half the width and the rotation."""
        return [
            make(
                op,
                "RotaryEmbedding",
                [plan.x, _table(op, plan, plan.cos), _table(op, plan, plan.sin)],
                like(plan.replaced[0]),
                name=plan.root.name,
            )
        ]


def _table(op: RewriterContext, plan: _RotaryPlan, table: ir.Value) -> ir.Value:
    """Return the `[B, S, D/2]` of a table `[B or 1, 1, S, D]`."""
    assert table.shape is not None
    batch, _, length, _ = table.shape
    half = make(
        op,
        "Slice",
        [table, *(make_int64s(op, [number]) for number in (0, plan.half, 3))],
        (table.dtype, ir.Shape([batch, 1, length, plan.half])),
    )
    flat = make(
        op,
        "Squeeze",
        [half, make_int64s(op, [1])],
        (table.dtype, ir.Shape([batch, length, plan.half])),
    )
    if not plan.shared_rows:
        return flat
    assert plan.x.shape is not None
    rows = make(op, "Shape", [plan.x], (ir.DataType.INT64, [1]), attributes={"start": 0, "end": 1})
    target = make(
        op,
        "Concat",
        [rows, make_int64s(op, [1, 1])],
        (ir.DataType.INT64, [3]),
        attributes={"axis": 0},
    )
    shape = ir.Shape([plan.x.shape[0], length, plan.half])
    return make(op, "Expand", [flat, target], (table.dtype, shape))


def _rotation(
    node: ir.Node,
) -> tuple[ir.Value, ir.Value, ir.Value, int, tuple[ir.Node, ...]] | None:
    """Return (x, cos, sin, half, nodes) of a sum that is a rotation, whatever the tables are."""
    if not is_binary(node):
        return None
    for index in (0, 1):
        straight = producer_of(node.inputs[index], "", "Mul")
        crossed = producer_of(node.inputs[1 - index], "", "Mul")
        if straight is None or crossed is None or not is_binary(straight):
            continue
        if not is_binary(crossed):
            continue
        for side in (0, 1):
            turned = _rotated_half(crossed.inputs[side])
            if turned is None:
                continue
            x, half, nodes = turned
            sin = crossed.inputs[1 - side]
            cos = next((straight.inputs[1 - at] for at in (0, 1) if straight.inputs[at] is x), None)
            if cos is not None and sin is not None:
                return x, cos, sin, half, (straight, crossed, *nodes)
    return None


def _rotated_half(value: ir.Value | None) -> tuple[ir.Value, int, tuple[ir.Node, ...]] | None:
    """Return (x, D/2, nodes) where the value is `Concat(-x[D/2:], x[:D/2])` on the last axis."""
    concat = producer_of(value, "", "Concat")
    if concat is None or len(concat.inputs) != 2:
        return None
    negative = producer_of(concat.inputs[0], "", "Neg")
    axis = concat.attributes.get("axis")
    if negative is None or axis is None or axis.is_ref():
        return None
    if axis.as_int() not in (-1, _last(concat.outputs[0])):
        return None
    upper, lower = input_at(negative, 0), concat.inputs[0 + 1]
    first = lower.producer() if lower is not None else None
    second = upper.producer() if upper is not None else None
    if first is None or second is None or first.domain or second.domain:
        return None
    x, half = input_at(first, 0), static_dim(lower, -1)
    if x is None or half is None or input_at(second, 0) is not x:
        return None
    if first is second:
        order = list(first.outputs) == [lower, upper]
        if first.op_type != "Split" or not order or not _is_even_split(first, half):
            return None
        return x, half, (concat, negative, first)
    if first.op_type != "Slice" or second.op_type != "Slice":
        return None
    width = static_dim(x, -1)
    if _bounds(first) != (0, half) or _bounds(second) != (half, width) or width != 2 * half:
        return None
    return x, half, (concat, negative, first, second)


def _bounds(node: ir.Node) -> tuple[int, int] | None:
    """Return (start, end) of a Slice of the last axis by steps of 1, counted from the front."""
    x = input_at(node, 0)
    width = static_dim(x, -1)
    starts, ends = (constant_ints(input_at(node, index)) for index in (1, 2))
    axes, steps = (constant_ints(input_at(node, index)) for index in (3, 4))
    if width is None or starts is None or ends is None or axes is None:
        return None
    if len(starts) != 1 or axes not in ([-1], [_last(x)]):
        return None
    if input_at(node, 4) is not None and steps != [1]:
        return None
    start, end, _ = slice(starts[0], ends[0]).indices(width)
    return start, end


def _is_even_split(node: ir.Node, half: int) -> bool:
    x = input_at(node, 0)
    sizes = constant_ints(input_at(node, 1))
    if int_attribute(node, "axis", 0) not in (-1, _last(x)) or len(node.outputs) != 2:
        return False
    return static_dim(x, -1) == 2 * half and (input_at(node, 1) is None or sizes == [half, half])


def _last(value: ir.Value | None) -> int | None:
    axes = rank(value)
    return None if axes is None else axes - 1


def _shares_rows(node: ir.Node, table: ir.Value, x: ir.Value) -> bool:
    """Return whether the table has one row for the whole batch; refuse other shapes."""
    found, sizes = dims(table), dims(x)
    assert sizes is not None
    batch, _, length, width = sizes
    if found is not None and len(found) == 4 and found[1:] == [1, length, width]:
        if found[0] == batch:
            return False
        if found[0] == 1:
            return True
    shape = "unknown" if table.shape is None else f"{table.shape}"
    refuse(
        f"A table of {describe_node(node)} has the shape {shape} and rotates {x.shape}; [batch or "
        "1, 1, length, width], provably of the same sizes, is needed.",
        node,
    )


def _halves_equal(value: ir.Value | None, depth: int = _DEPTH) -> bool:
    """Return whether both halves of the last axis are provably equal."""
    if value is None or depth == 0:
        return False
    array = constant_array(value, 1 << 16)
    if array is not None:
        if array.ndim == 0 or array.shape[-1] % 2:
            return False
        left, right = np.split(array, 2, axis=-1)
        return bool(np.array_equal(left, right))
    node = value.producer()
    if node is None or node.domain:
        return False
    if node.op_type == "Concat":
        axis = node.attributes.get("axis")
        if axis is None or axis.is_ref() or axis.as_int() not in (-1, _last(value)):
            return False
        return len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
    if node.op_type in _ELEMENTWISE:
        return _halves_equal(input_at(node, 0), depth - 1)
    if node.op_type in ("Mul", "Div", "Add") and is_binary(node):
        factors = [index for index in (0, 1) if scalar(node.inputs[index]) is not None]
        return len(factors) == 1 and _halves_equal(node.inputs[1 - factors[0]], depth - 1)
    if node.op_type == "Unsqueeze":
        axes, width = constant_ints(input_at(node, 1)), _last(value)
        inside = axes is not None and width is not None and -1 not in axes and width not in axes
        return inside and _halves_equal(input_at(node, 0), depth - 1)
    return False


def rotary_embedding_rules() -> list[RewriteRule]:
    """Return the rules of this file, for `onnxscript.rewriter.rewrite`."""
    return [RotaryFusion()]
