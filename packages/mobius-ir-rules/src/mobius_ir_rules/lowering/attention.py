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
    visible = Cast(Concat(Cast(mask, INT32), Cast(mask, INT32), axis=-2), BOOL)
    weights = Where(visible, Softmax(Where(visible, scores, lowest)), 0)
    y = ...Reshape(MatMul(weights, present_value), [0, 4, -1, D])...

The mask is repeated for the `G` rows of each query, not the keys; a boolean one as int32, because
WebGPU has no Concat of booleans. A mask that heads do not share, or whose number of rows is not
known to be that of the queries, meets the scores in the shape `[B, 4, S, T]` instead; some runtimes
cannot infer that reshape from symbolic sizes.

The soft cap comes before the mask, and a row of which no key may be seen gives zeros, whether a
boolean mask, a floating-point one of minus infinity or causality says so. A boolean mask chooses
the lowest finite number, not minus infinity: a softmax of nothing but that is NaN on some runtimes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.lowering._constants import make_scalar
from mobius_ir_rules.rule import Plan, Rule, refuse, standard
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

_ATTRIBUTES = (
    *("is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode"),
    *("scale", "softcap", "softmax_precision"),
)
_WINDOWS = ("left_window_size", "right_window_size")  # Opset 25; -1 is no window.


def attention_to_primitives_rules() -> list[Rule]:
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
    is_mask_shared: bool


class AttentionToPrimitives(Rule):
    """Decompose one Attention node, 3-D or 4-D, with or without cache and mask."""

    roots = (("", "Attention"),)
    emits = (
        *standard("Add", "And", "Cast", "Concat", "Div", "Identity", "Less", "LessOrEqual"),
        *standard("MatMul", "Mul", "Range", "ReduceMax", "Reshape", "Shape", "Softmax"),
        *standard("Squeeze", "Tanh", "Transpose", "Unsqueeze", "Where"),
    )

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
        _require_known_attributes(node)
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
            is_mask_shared=_is_shared(_mask(node), query),
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
    length, total = static_dim(mask, -1), _total_length(node)
    if length is not None and length != total and (length == 1 or total is not None):
        # The operator pads a short mask; primitives would broadcast one key's mask to all.
        refuse(
            f"The mask, {describe_value(mask)}, is for {length} keys of {total or 'unknown'}; one "
            "for all keys is needed.",
            node,
        )
    return mask


def _is_shared(mask: ir.Value | None, query: ir.Value) -> bool:
    """Return whether all heads share the mask, and it has as many rows as there are queries."""
    if mask is None or mask.shape is None or query.shape is None:
        return mask is None
    if len(mask.shape) > 2 and static_dim(mask, -3) != 1:
        return False
    rows, queries = mask.shape[-2], query.shape[1 if len(query.shape) == 3 else 2]
    if isinstance(rows, int):
        return rows in (1, queries)
    return rows.value is not None and rows == queries


def _broadcast(mask: ir.Value) -> list[None]:
    """Return an unknown shape of the rank that mask and causality have together."""
    return [None] * max(2, rank(mask) or 0)


def _total_length(node: ir.Node) -> int | None:
    """Return the number of keys, those of the cache included, `None` where it is not known."""
    past, key = input_at(node, 4), input_at(node, 1)
    present = output_at(node, 1)
    if static_dim(present, 2) is not None:
        return static_dim(present, 2)
    new = static_dim(key, 2 if rank(key) == 4 else 1)
    cached = 0 if past is None else static_dim(past, 2)
    return None if new is None or cached is None else cached + new


def _require_known_attributes(node: ir.Node) -> None:
    for name in node.attributes:
        if name in _WINDOWS:
            if (window := int_attribute(node, name, -1)) != -1:
                refuse(f"Attention has {name} = {window}; none, or -1, is needed.", node)
        elif name not in _ATTRIBUTES:
            refuse(
                f"Attention has the attribute {name}; none but those of opset 25 is needed.", node
            )
