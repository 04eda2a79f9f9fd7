"""`Emitter`: the steps of an Attention node in primitives, one method each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.lowering._constants import make_scalar
from mobius_ir_rules.rule import Plan
from mobius_ir_rules.values import (
    Declaration,
    like,
    make,
    make_int64s,
    output_at,
    rank,
    static_dim,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionPlan(Plan):
    """One Attention node, every input and attribute of it."""

    query: ir.Value
    key: ir.Value
    value: ir.Value
    mask: ir.Value | None
    past_key: ir.Value | None
    past_value: ir.Value | None
    query_heads: int
    kv_heads: int
    head_size: int
    value_size: int
    dtype: ir.DataType
    softmax_dtype: ir.DataType
    scale: float
    softcap: float
    is_causal: bool
    is_mask_shared: bool


@dataclasses.dataclass(frozen=True)
class Emitter:
    """The steps of one decomposition."""

    op: RewriterContext
    plan: AttentionPlan

    def scalar(self, number: float) -> ir.Value:
        return make_scalar(self.op, number, self.plan.dtype)

    def identity(self, x: ir.Value) -> ir.Value:
        return make(self.op, "Identity", [x], like(x))

    def reshape(self, x: ir.Value, shape: Sequence[int], declared: Declaration) -> ir.Value:
        return make(self.op, "Reshape", [x, make_int64s(self.op, shape)], declared)

    def split_heads(self, x: ir.Value, heads: int, size: int) -> ir.Value:
        """`[B, S, heads * size]` -> `[B, heads, S, size]`; 4-D values are that already."""
        if rank(x) == 4:
            return x
        assert x.shape is not None
        batch, length, _ = x.shape
        split = self.reshape(
            x, [0, 0, heads, size], (x.dtype, ir.Shape([batch, length, heads, size]))
        )
        return make(
            self.op,
            "Transpose",
            [split],
            (x.dtype, ir.Shape([batch, heads, length, size])),
            attributes={"perm": [0, 2, 1, 3]},
        )

    def append(self, past: ir.Value | None, new: ir.Value, output: int) -> ir.Value:
        """Append the new keys or values to the cache."""
        if past is None:
            return new
        declared = output_at(self.plan.root, output)
        shape = declared.shape if declared is not None else None
        return make(self.op, "Concat", [past, new], (new.dtype, shape), attributes={"axis": 2})

    def weights(self, query: ir.Value, key: ir.Value) -> ir.Value:
        """Return the attention weights; `[B, kv_heads, G * S, T]` where heads share the mask."""
        scores = self.capped(self.scores(query, key))
        if not self.plan.is_mask_shared:
            scores = self.ungroup(scores, 0, None)
        declared = like(scores)
        mask, causal = self.plan.mask, self.causal_mask(query, key)
        if mask is not None and mask.dtype != ir.DataType.BOOL:
            return self.biased_softmax(scores, self.for_each_row(self.bias(mask, causal)))
        visible = causal if mask is None else mask
        if visible is None:
            return self.softmax(scores)
        if causal is not None and mask is not None:
            visible = make(self.op, "And", [mask, causal], (ir.DataType.BOOL, _broadcast(mask)))
        visible = self.for_each_row(visible)
        lowest = self.scalar(float(self.plan.dtype.min))
        weights = self.softmax(make(self.op, "Where", [visible, scores, lowest], declared))
        return make(self.op, "Where", [visible, weights, self.scalar(0.0)], declared)

    def scores(self, query: ir.Value, key: ir.Value) -> ir.Value:
        """Return the scaled products of query and key, `[B, kv_heads, G * S, T]`."""
        op, plan, dtype = self.op, self.plan, self.plan.dtype
        scaled = make(op, "Mul", [query, self.scalar(plan.scale)], like(query))
        turned = make(
            op,
            "Transpose",
            [key],
            (dtype, [None, plan.kv_heads, plan.head_size, None]),
            attributes={"perm": [0, 1, 3, 2]},
        )
        rows = self.group(scaled, plan.head_size, plan.head_size)
        return make(op, "MatMul", [rows, turned], (dtype, [None, plan.kv_heads, None, None]))

    def capped(self, scores: ir.Value) -> ir.Value:
        """Return the scores under the soft cap, if there is one."""
        if not self.plan.softcap:
            return scores
        op, cap, declared = self.op, self.scalar(self.plan.softcap), like(scores)
        bounded = make(op, "Tanh", [make(op, "Div", [scores, cap], declared)], declared)
        return make(op, "Mul", [bounded, cap], declared)

    def bias(self, mask: ir.Value, causal: ir.Value | None) -> ir.Value:
        """Return the mask as it is added to the scores, causality included."""
        if causal is None:
            return mask
        declared = (mask.dtype, _broadcast(mask))
        return make(self.op, "Where", [causal, mask, self.scalar(-math.inf)], declared)

    def for_each_row(self, mask: ir.Value) -> ir.Value:
        """Return a mask of S queries as one of the `G * S` rows that the scores have."""
        plan = self.plan
        groups = plan.query_heads // plan.kv_heads
        if not plan.is_mask_shared or groups == 1 or static_dim(mask, -2) == 1:
            return mask
        # Its rank is known, or heads would not share it.
        assert mask.shape is not None
        shape = ir.Shape([*mask.shape[:-2], None, mask.shape[-1]])
        if mask.dtype != ir.DataType.BOOL:
            return self.repeated(mask, groups, shape)
        # WebGPU joins numbers only; all layers share these casts.
        numbers = self.cast(mask, ir.DataType.INT32, mask.shape)
        return self.cast(self.repeated(numbers, groups, shape), ir.DataType.BOOL, shape)

    def repeated(self, mask: ir.Value, times: int, shape: ir.Shape) -> ir.Value:
        attributes = {"axis": -2}
        return make(self.op, "Concat", [mask] * times, (mask.dtype, shape), attributes=attributes)

    def cast(self, x: ir.Value, dtype: ir.DataType, shape: ir.Shape) -> ir.Value:
        return make(self.op, "Cast", [x], (dtype, shape), attributes={"to": int(dtype)})

    def biased_softmax(self, scores: ir.Value, bias: ir.Value) -> ir.Value:
        """Return the softmax of the sum, zeros for rows that are minus infinity throughout."""
        op, plan = self.op, self.plan
        biased = make(op, "Add", [scores, bias], like(scores))
        highest = make(
            op,
            "ReduceMax",
            [biased, make_int64s(op, [-1])],
            (plan.dtype, None if biased.shape is None else [*biased.shape[:3], 1]),
            attributes={"keepdims": 1},
        )
        lowest = self.scalar(float(plan.dtype.min))
        dead = make(op, "Less", [highest, lowest], (ir.DataType.BOOL, highest.shape))
        return make(op, "Where", [dead, self.scalar(0.0), self.softmax(biased)], like(scores))

    def softmax(self, scores: ir.Value) -> ir.Value:
        op, plan, declared = self.op, self.plan, like(scores)
        axis = {"axis": -1}
        if plan.softmax_dtype == plan.dtype:
            return make(op, "Softmax", [scores], declared, attributes=axis)
        other = (plan.softmax_dtype, declared[1])
        wide = make(op, "Cast", [scores], other, attributes={"to": int(plan.softmax_dtype)})
        weights = make(op, "Softmax", [wide], other, attributes=axis)
        return make(op, "Cast", [weights], declared, attributes={"to": int(plan.dtype)})

    def causal_mask(self, query: ir.Value, key: ir.Value) -> ir.Value | None:
        """Return `[S, T]`: key slot <= cached length + query index."""
        if not self.plan.is_causal:
            return None
        op, int64 = self.op, ir.DataType.INT64
        zero, one = self.integer(0), self.integer(1)
        queries, keys = self.length(query), self.length(key)
        query_index = make(op, "Range", [zero, queries, one], (int64, [None]))
        if self.plan.past_key is not None:
            offset = self.length(self.plan.past_key)
            query_index = make(op, "Add", [query_index, offset], (int64, [None]))
        column = make(op, "Unsqueeze", [query_index, make_int64s(op, [1])], (int64, [None, 1]))
        key_index = make(op, "Range", [zero, keys, one], (int64, [None]))
        return make(op, "LessOrEqual", [key_index, column], (ir.DataType.BOOL, [None, None]))

    def integer(self, number: int) -> ir.Value:
        return make_scalar(self.op, number, ir.DataType.INT64)

    def length(self, x: ir.Value) -> ir.Value:
        """Return axis 2 of `x` as a scalar."""
        int64 = ir.DataType.INT64
        axis = make(self.op, "Shape", [x], (int64, [1]), attributes={"start": 2, "end": 3})
        return make(self.op, "Squeeze", [axis], (int64, []))

    def attend(self, weights: ir.Value, value: ir.Value) -> ir.Value:
        """Return `[B, query_heads, S, value_size]`."""
        plan = self.plan
        declared = (plan.dtype, [None, plan.kv_heads, None, plan.value_size])
        rows = weights if plan.is_mask_shared else self.group(weights, 0, None)
        products = make(self.op, "MatMul", [rows, value], declared)
        return self.ungroup(products, plan.value_size, plan.value_size)

    def group(self, x: ir.Value, last: int, width: int | None) -> ir.Value:
        """`[B, query_heads, S, width]` -> `[B, kv_heads, G * S, width]`; `last` 0 copies width."""
        plan = self.plan
        if plan.query_heads == plan.kv_heads:
            return x
        declared = (plan.dtype, ir.Shape([None, plan.kv_heads, None, width]))
        return self.reshape(x, [0, plan.kv_heads, -1, last], declared)

    def ungroup(self, x: ir.Value, last: int, width: int | None) -> ir.Value:
        """`[B, kv_heads, G * S, width]` -> `[B, query_heads, S, width]`."""
        plan = self.plan
        if plan.query_heads == plan.kv_heads:
            return x
        declared = (plan.dtype, ir.Shape([None, plan.query_heads, None, width]))
        return self.reshape(x, [0, plan.query_heads, -1, last], declared)

    def merge_heads(self, x: ir.Value) -> ir.Value:
        """`[B, heads, S, size]` -> the layout of the query."""
        plan = self.plan
        if rank(plan.query) == 4:
            return x
        turned = make(
            self.op,
            "Transpose",
            [x],
            (plan.dtype, [None, None, plan.query_heads, plan.value_size]),
            attributes={"perm": [0, 2, 1, 3]},
        )
        width = plan.query_heads * plan.value_size
        return self.reshape(turned, [0, 0, width], (plan.dtype, [None, None, width]))


def _broadcast(mask: ir.Value) -> list[None]:
    """Return an unknown shape of the rank that mask and causality have together."""
    return [None] * max(2, rank(mask) or 0)
