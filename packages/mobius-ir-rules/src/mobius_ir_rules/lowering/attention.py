"""`attention_to_primitives_rules()`: ai.onnx Attention -> MatMul, Softmax and what lies between.

For targets without a kernel for `ai.onnx::Attention`. Key/value heads are never repeated: the
query heads that share one are rows of the same matrix product.

Before:

    y, present_key, present_value = Attention <q_num_heads=4, kv_num_heads=2> (
        q, k, v, mask, past_key, past_value)

After (`G` query heads share a key/value head):

    q4 = Transpose(Reshape(q, [0, 0, 4, D]), perm=[0, 2, 1, 3])
    present_key = Concat(past_key, Transpose(Reshape(k, [0, 0, 2, D]), ...), axis=2)
    scores = MatMul(Reshape(Mul(q4, scale), [0, 2, -1, D]), Transpose(present_key, [0, 1, 3, 2]))
    masked = Where(mask, Reshape(scores, [0, 4, -1, 0]), lowest)
    weights = Where(mask, Softmax(masked), 0)
    y = ...MatMul(weights, present_value)...

The soft cap comes before the mask, and a row whose keys are all masked by a boolean mask gives
zeros, as on ONNX Runtime's CPU kernel.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import RewriterContext, RewriteRule

from mobius_ir_rules.rule import Plan, Rule, refuse
from mobius_ir_rules.values import (
    Declaration,
    describe_value,
    float_attribute,
    input_at,
    int_attribute,
    is_used,
    like,
    make,
    make_int64s,
    output_at,
    rank,
    static_dim,
)

_CACHE_OUTPUTS = (1, 2)


def attention_to_primitives_rules() -> list[RewriteRule]:
    """Return the rules of this module."""
    return [AttentionToPrimitives()]


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


class AttentionToPrimitives(Rule):
    """Decompose one Attention node, 3-D or 4-D, with or without cache and mask."""

    roots = (("", "Attention"),)

    def plan(self, node: ir.Node) -> AttentionPlan:
        """Read the node; refuse what the primitives would not compute the same."""
        query, key, value = (input_at(node, index) for index in range(3))
        if query is None or key is None or value is None:
            refuse("Attention lacks a query, key or value; all three are needed.", node)
        if rank(query) not in (3, 4) or rank(key) != rank(query) or rank(value) != rank(query):
            refuse(
                f"The ranks of query, key and value are {rank(query)}, {rank(key)} and "
                f"{rank(value)}; all 3 or all 4 are needed.",
                node,
            )
        if input_at(node, 6) is not None:
            refuse("Attention has nonpad_kv_seqlen; none is needed.", node)
        if is_used(output_at(node, 3)):
            refuse("The output qk_matmul_output is used; it must not be.", node)
        past_key, past_value = input_at(node, 4), input_at(node, 5)
        if (past_key is None) != (past_value is None):
            refuse("Only one of past_key and past_value is given; both or none are needed.", node)
        query_heads = _heads(node, query, "q_num_heads")
        kv_heads = _heads(node, key, "kv_num_heads")
        if query_heads % kv_heads:
            refuse(
                f"There are {query_heads} query heads and {kv_heads} key/value heads; a multiple "
                "is needed.",
                node,
            )
        head_size = _head_size(node, query, query_heads)
        scale = float_attribute(node, "scale", 0.0)
        dtype = query.dtype
        if dtype is None:
            refuse(f"The element type of {describe_value(query)} is not known; it is needed.", node)
        precision = int_attribute(node, "softmax_precision", 0)
        return AttentionPlan(
            root=node,
            replaced=tuple(
                output
                for output in (output_at(node, index) for index in range(3))
                if output is not None
            ),
            query=query,
            key=key,
            value=value,
            mask=_mask(node),
            past_key=past_key,
            past_value=past_value,
            query_heads=query_heads,
            kv_heads=kv_heads,
            head_size=head_size,
            value_size=_head_size(node, value, kv_heads),
            dtype=dtype,
            softmax_dtype=ir.DataType(precision) if precision else dtype,
            scale=scale if scale else 1.0 / math.sqrt(head_size),
            softcap=float_attribute(node, "softcap", 0.0),
            is_causal=bool(int_attribute(node, "is_causal", 0)),
        )

    def emit(self, op: RewriterContext, plan: AttentionPlan) -> Sequence[ir.Value]:
        """Make the products, the softmax and the reshapes around them."""
        emitter = _Emitter(op, plan)
        query = emitter.split_heads(plan.query, plan.query_heads, plan.head_size)
        new_key = emitter.split_heads(plan.key, plan.kv_heads, plan.head_size)
        new_value = emitter.split_heads(plan.value, plan.kv_heads, plan.value_size)
        key = emitter.append(plan.past_key, new_key, 1)
        value = emitter.append(plan.past_value, new_value, 2)
        weights = emitter.weights(query, key)
        attended = emitter.merge_heads(emitter.attend(weights, value))
        results = {0: attended, 1: key, 2: value}
        present = [results[index] for index in range(3) if output_at(plan.root, index) is not None]
        # A cache that is not appended to is the query's own key or value: give it its own node.
        return [
            value if index == 0 or plan.past_key is not None else emitter.identity(value)
            for index, value in enumerate(present)
        ]


@dataclasses.dataclass(frozen=True)
class _Emitter:
    """The steps of one decomposition."""

    op: RewriterContext
    plan: AttentionPlan

    def scalar(self, number: float, dtype: ir.DataType) -> ir.Value:
        tensor = ir.tensor(np.array(number, dtype.numpy()), dtype=dtype)
        return make(self.op, "Constant", [], (dtype, []), attributes={"value": tensor})

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
        """Return the attention weights, `[B, query_heads, S, T]`."""
        op, plan, dtype = self.op, self.plan, self.plan.dtype
        unknown: Declaration = (dtype, [None, plan.query_heads, None, None])
        scaled = make(op, "Mul", [query, self.scalar(plan.scale, dtype)], like(query))
        rows = self.reshape(
            scaled,
            [0, plan.kv_heads, -1, plan.head_size],
            (dtype, [None, plan.kv_heads, None, plan.head_size]),
        )
        turned = make(
            op,
            "Transpose",
            [key],
            (dtype, [None, plan.kv_heads, plan.head_size, None]),
            attributes={"perm": [0, 1, 3, 2]},
        )
        grouped = make(op, "MatMul", [rows, turned], (dtype, [None, plan.kv_heads, None, None]))
        scores = self.reshape(grouped, [0, plan.query_heads, -1, 0], unknown)
        if plan.softcap:
            cap = self.scalar(plan.softcap, dtype)
            capped = make(op, "Tanh", [make(op, "Div", [scores, cap], unknown)], unknown)
            scores = make(op, "Mul", [capped, cap], unknown)
        visible = [mask for mask in (self.bool_mask(), self.causal_mask(query, key)) if mask]
        for mask in visible:
            lowest = self.scalar(float(dtype.min), dtype)
            scores = make(op, "Where", [mask, scores, lowest], unknown)
        if plan.mask is not None and plan.mask.dtype != ir.DataType.BOOL:
            scores = make(op, "Add", [scores, plan.mask], unknown)
        weights = self.softmax(scores, unknown)
        for mask in visible:
            weights = make(op, "Where", [mask, weights, self.scalar(0.0, dtype)], unknown)
        return weights

    def softmax(self, scores: ir.Value, declared: Declaration) -> ir.Value:
        op, plan = self.op, self.plan
        axis = {"axis": -1}
        if plan.softmax_dtype == plan.dtype:
            return make(op, "Softmax", [scores], declared, attributes=axis)
        other = (plan.softmax_dtype, declared[1])
        wide = make(op, "Cast", [scores], other, attributes={"to": int(plan.softmax_dtype)})
        weights = make(op, "Softmax", [wide], other, attributes=axis)
        return make(op, "Cast", [weights], declared, attributes={"to": int(plan.dtype)})

    def bool_mask(self) -> ir.Value | None:
        mask = self.plan.mask
        return mask if mask is not None and mask.dtype == ir.DataType.BOOL else None

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
        return self.scalar(number, ir.DataType.INT64)

    def length(self, x: ir.Value) -> ir.Value:
        """Return axis 2 of `x` as a scalar."""
        int64 = ir.DataType.INT64
        axis = make(self.op, "Shape", [x], (int64, [1]), attributes={"start": 2, "end": 3})
        return make(self.op, "Squeeze", [axis], (int64, []))

    def attend(self, weights: ir.Value, value: ir.Value) -> ir.Value:
        """Return `[B, query_heads, S, value_size]`."""
        plan, dtype = self.plan, self.plan.dtype
        rows = self.reshape(
            weights, [0, plan.kv_heads, -1, 0], (dtype, [None, plan.kv_heads, None, None])
        )
        grouped = make(
            self.op,
            "MatMul",
            [rows, value],
            (dtype, [None, plan.kv_heads, None, plan.value_size]),
        )
        return self.reshape(
            grouped,
            [0, plan.query_heads, -1, plan.value_size],
            (dtype, [None, plan.query_heads, None, plan.value_size]),
        )

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


def _heads(node: ir.Node, x: ir.Value, attribute: str) -> int:
    heads = static_dim(x, 1) if rank(x) == 4 else int_attribute(node, attribute, 0)
    if not heads:
        refuse(f"The number of heads of {describe_value(x)} is not known; it is needed.", node)
    return heads


def _head_size(node: ir.Node, x: ir.Value, heads: int) -> int:
    width = static_dim(x, -1)
    if width is None:
        refuse(f"The last dimension of {describe_value(x)} is not known; it is needed.", node)
    return width if rank(x) == 4 else width // heads


def _mask(node: ir.Node) -> ir.Value | None:
    """Return the mask where it broadcasts against `[B, heads, S, T]` as primitives do."""
    mask = input_at(node, 3)
    if mask is None:
        return None
    if rank(mask) not in (2, 3, 4) or mask.dtype is None:
        refuse(
            f"The mask, {describe_value(mask)}, has rank {rank(mask)} and element type "
            f"{mask.dtype}; a known type and a rank of 2 to 4 are needed.",
            node,
        )
    return mask
