"""What decides the nodes of the body of `com.microsoft::LinearAttention`."""

from __future__ import annotations

import dataclasses
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.calls import (
    given_inputs,
    refuse_attributes,
    refuse_inputs,
    require_inputs,
)
from mobius_ir_rules.rule import refuse
from mobius_ir_rules.values import (
    describe_node,
    float_attribute,
    input_at,
    int_attribute,
    static_dim,
    string_attribute,
)

INPUTS = ("query", "key", "value", "past_state", "decay", "beta")

_RULES = ("linear", "gated", "delta", "gated_delta")


@dataclasses.dataclass(frozen=True)
class LinearAttentionForm:
    """What decides the nodes of the body.

    Attributes:
        given: Inputs that the call gives.
        casts: Those that are not known to be float32.
        per_head: Those of `decay` and `beta` that are known to have one number a head.
        outputs: How many outputs the call lists.
        q_heads: Heads of queries.
        k_heads: Heads of keys, `kv_heads` where the widths are unknown.
        kv_heads: Heads of values, and states.
        update_rule: One of `linear`, `gated`, `delta`, `gated_delta`.
        scale: Factor of the output; 0 is one over the root of the head size.
        chunk_size: The attribute, a hint to kernels.
        single: The call says that there is one token.
    """

    given: tuple[str, ...]
    casts: tuple[str, ...]
    per_head: tuple[str, ...]
    outputs: int
    q_heads: int
    k_heads: int
    kv_heads: int
    update_rule: str
    scale: float
    chunk_size: int
    single: bool


def read_linear_attention(node: ir.Node) -> LinearAttentionForm:
    """Return the form of the call.

    Raises:
        RefusedError: If the body does not compute the call.
    """
    given = given_inputs(node, INPUTS)
    update_rule = string_attribute(node, "update_rule", "gated_delta")
    if update_rule not in _RULES:
        refuse(
            f"{describe_node(node)} has update_rule={update_rule!r}; one of {_RULES} is needed.",
            node,
        )
    needed: list[str] = ["query", "key", "value"]
    unused: list[str] = []
    for name, needs_it in (("decay", "gated" in update_rule), ("beta", "delta" in update_rule)):
        (needed if needs_it else unused).append(name)
    require_inputs(node, given, needed)
    refuse_inputs(node, given, unused)
    refuse_attributes(node, {"state_window": 0})
    q_heads, kv_heads = (int_attribute(node, f"{kind}_num_heads", 0) for kind in ("q", "kv"))
    if q_heads < 1 or kv_heads < 1 or max(q_heads, kv_heads) % min(q_heads, kv_heads):
        refuse(
            f"{describe_node(node)} has {q_heads} query heads and {kv_heads} key/value heads; "
            "one number a multiple of the other is needed.",
            node,
        )
    values = {name: input_at(node, INPUTS.index(name)) for name in given}
    return LinearAttentionForm(
        given=given,
        casts=tuple(
            name
            for name, value in values.items()
            if value is None or value.dtype != ir.DataType.FLOAT
        ),
        per_head=tuple(
            name for name in ("decay", "beta") if static_dim(values.get(name), 2) == kv_heads
        ),
        outputs=len(node.outputs),
        q_heads=q_heads,
        k_heads=_key_heads(node, q_heads, kv_heads),
        kv_heads=kv_heads,
        update_rule=update_rule,
        scale=float_attribute(node, "scale", 0.0),
        chunk_size=int_attribute(node, "chunk_size", 64),
        single=static_dim(input_at(node, 0), 1) == 1,
    )


def _key_heads(node: ir.Node, q_heads: int, kv_heads: int) -> int:
    """Return how many keys a token has, as the kernels find it."""
    query, key = (static_dim(input_at(node, index), 2) for index in (0, 1))
    if query is None or key is None:
        return kv_heads
    heads, rest = divmod(key * q_heads, query)
    if rest or not heads or kv_heads % heads:
        refuse(
            f"{describe_node(node)} has keys of width {key} beside {q_heads} queries of width "
            f"{query} together; a number of keys that divides the {kv_heads} key/value heads is "
            "needed.",
            node,
        )
    return heads


def scaled_queries(op: OpBuilder, form: LinearAttentionForm, query: Any) -> Any:
    """Return the queries, `[..., dk]`, times the scale."""
    if form.scale == 1.0:
        return query
    if form.scale:
        return op.Mul(query, op.Constant(value_float=form.scale))
    size = op.Cast(op.Shape(query, start=-1), to=ir.DataType.FLOAT)
    return op.Mul(query, op.Div(op.Constant(value_float=1.0), op.Sqrt(size)))
