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

import math
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.lowering._attention_primitives import AttentionPlan, Emitter
from mobius_ir_rules.rule import Rule, refuse, standard
from mobius_ir_rules.values import (
    describe_value,
    float_attribute,
    input_at,
    int_attribute,
    is_used,
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
        emitter = Emitter(op, plan)
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
