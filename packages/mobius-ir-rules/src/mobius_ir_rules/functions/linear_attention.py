"""Body of `com.microsoft::LinearAttention`: attention with a state of fixed size.

    output, present_state = LinearAttention(query, key, value, past_state, decay, beta;
                                            q_num_heads, kv_num_heads, update_rule, scale)

Everything is packed: `query` is `[B, T, q_heads * dk]`, `key` `[B, T, k_heads * dk]`, `value`
`[B, T, kv_heads * dv]`, `decay` `[B, T, kv_heads * dk]` or `[B, T, kv_heads]`, in log space, `beta`
`[B, T, kv_heads]` or `[B, T, 1]`; states are `[B, kv_heads, dk, dv]`, zeros when not given. For
each token in turn, with `k v^T` the outer product:

| update_rule | state |
|---|---|
| linear | `S = S + k v^T` |
| gated | `S = exp(g) S + k v^T` |
| delta | `S = S + beta k (v - S^T k)^T` |
| gated_delta | `S = exp(g) S`, then as delta |

and the output is `scale * S^T q`, for each query head, or, where there are fewer of those, for each
key/value head. A key serves `kv_heads / k_heads` states; the schema's text has as many keys as
states, its kernels (CPU, CUDA, WebGPU, MLX) find `k_heads` from the widths, and so does the body.

**Form.** One `Loop` over tokens that carries the state, or straight-line nodes where the call says
that there is one token. That is the operator's definition, so it is right for every decay; a form
in chunks needs the inverse of a triangular matrix, whose cheap expansion into powers loses all
digits where keys repeat. The state and all arithmetic are float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.calls import (
    CallBody,
    given_inputs,
    make_call_body,
    refuse_attributes,
    refuse_inputs,
    require_inputs,
)
from mobius_ir_rules.functions.token_loop import each_token, unstacked
from mobius_ir_rules.rule import refuse
from mobius_ir_rules.values import (
    MICROSOFT,
    describe_node,
    float_attribute,
    input_at,
    int_attribute,
    static_dim,
    string_attribute,
)

LINEAR_ATTENTION = (MICROSOFT, "LinearAttention")

_INPUTS = ("query", "key", "value", "past_state", "decay", "beta")
_OUTPUTS = ("output", "present_state")
_RULES = ("linear", "gated", "delta", "gated_delta")


@dataclasses.dataclass(frozen=True)
class LinearAttentionForm:
    """What decides the nodes of the body.

    `k_heads` is `kv_heads` where the widths are unknown; `scale` 0 is one over the root of the head
    size; `single` says that there is one token.
    """

    given: tuple[str, ...]
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
    given = given_inputs(node, _INPUTS)
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
    return LinearAttentionForm(
        given=given,
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


def build_linear_attention(form: LinearAttentionForm, opset_version: int) -> ir.Function:
    """Return the body of LinearAttention for the form and `opset_version`."""

    def body(op: OpBuilder, inputs: Mapping[str, ir.Value]) -> Any:
        output, state = _attend(op, form, inputs)
        target = inputs.get("past_state", inputs["query"])
        output = op.CastLike(output, inputs["query"])
        return (output, op.CastLike(state, target))[: form.outputs]

    attributes = [
        ir.AttrInt64("q_num_heads", form.q_heads),
        ir.AttrInt64("kv_num_heads", form.kv_heads),
        ir.AttrString("update_rule", form.update_rule),
        ir.AttrFloat32("scale", form.scale),
        ir.AttrInt64("chunk_size", form.chunk_size),
        ir.AttrInt64("state_window", 0),
    ]
    return make_call_body(
        LINEAR_ATTENTION,
        _INPUTS,
        form.given,
        _OUTPUTS[: form.outputs],
        attributes,
        body,
        opset_version,
    )


LINEAR_ATTENTION_BODY = CallBody(read_linear_attention, build_linear_attention)
"""Row of the table of bodies."""


def _attend(
    op: OpBuilder, form: LinearAttentionForm, inputs: Mapping[str, ir.Value]
) -> tuple[Any, Any]:
    """Return the output `[B, T, heads * dv]` and the last state, both float32."""
    tokens, state = _prepare(op, form, inputs)
    if form.single:
        step = {name: op.Squeeze(value, _ints(op, 0)) for name, value in tokens.items()}
        state, attended = _update(op, step, state)
        stacked = op.Unsqueeze(attended, _ints(op, 0))
    else:
        state, stacked = each_token(op, tokens, state, _update, rank=4)
        stacked = unstacked(op, stacked, tokens["query"], 4)
    # [T, B, kv_heads, group, dv] -> [B, T, heads * dv]
    flat = op.Reshape(op.Transpose(stacked, perm=[1, 0, 2, 3, 4]), _ints(op, 0, 0, -1))
    return flat, state


def _prepare(
    op: OpBuilder, form: LinearAttentionForm, inputs: Mapping[str, ir.Value]
) -> tuple[dict[str, Any], Any]:
    """Return what each token brings, tokens first and ready for `_update`; and the first state."""
    rows, columns = _ints(op, 3), _ints(op, 4)
    heads = {"query": form.q_heads, "key": form.k_heads}
    split = {
        name: _token_major(op, inputs[name], heads.get(name, form.kv_heads))
        for name in ("query", "key", "value", "decay")
        if name in form.given
    }
    split["key"] = _repeat_heads(op, split["key"], form.kv_heads // form.k_heads)
    tokens: dict[str, Any] = {
        "query": _group_queries(op, form, split["query"]),
        "key": op.Unsqueeze(split["key"], columns),
        "value": op.Unsqueeze(split["value"], rows),
    }
    if "decay" in form.given:
        tokens["decay"] = op.Exp(op.Unsqueeze(split["decay"], columns))
    if "beta" in form.given:
        # One for all heads, or one a head.
        beta = op.Cast(op.Transpose(inputs["beta"], perm=[1, 0, 2]), to=ir.DataType.FLOAT)
        tokens["beta"] = op.Unsqueeze(beta, _ints(op, 3, 4))
        tokens["asked"] = op.Unsqueeze(split["key"], rows)
    if "past_state" in form.given:
        return tokens, op.Cast(inputs["past_state"], to=ir.DataType.FLOAT)
    sizes = [op.Shape(split[name], start=3) for name in ("key", "value")]
    shape = op.Concat(op.Shape(split["key"], start=1, end=3), *sizes, axis=0)
    return tokens, op.Expand(_float(op, 0.0), shape)


def _update(op: OpBuilder, step: Mapping[str, Any], state: Any) -> tuple[Any, Any]:
    """Return the state after one token, and its output `[B, kv_heads, group, dv]`.

    `query` is `[B, kv_heads, group, dk]`, scaled; `key` a column `[B, kv_heads, dk, 1]`, `asked`
    the same as a row; `value` a row `[B, kv_heads, 1, dv]`; `decay` `[B, kv_heads, dk or 1, 1]`,
    exponentiated; `beta` `[B, kv_heads or 1, 1, 1]`.
    """
    if "decay" in step:
        state = op.Mul(step["decay"], state)
    new = step["value"]
    if "beta" in step:
        new = op.Mul(step["beta"], op.Sub(new, op.MatMul(step["asked"], state)))
    state = op.Add(state, op.Mul(step["key"], new))
    return state, op.MatMul(step["query"], state)


def _token_major(op: OpBuilder, x: ir.Value, heads: int) -> Any:
    """`[B, T, heads * d]` -> float32 `[T, B, heads, d]`."""
    split = op.Reshape(op.Cast(x, to=ir.DataType.FLOAT), _ints(op, 0, 0, heads, -1))
    return op.Transpose(split, perm=[1, 0, 2, 3])


def _group_queries(op: OpBuilder, form: LinearAttentionForm, query: Any) -> Any:
    """`[T, B, q_heads, dk]` -> `[T, B, kv_heads, group, dk]`, times the scale."""
    if form.scale:
        scale = _float(op, form.scale)
    else:
        size = op.Cast(op.Shape(query, start=3), to=ir.DataType.FLOAT)
        scale = op.Div(_float(op, 1.0), op.Sqrt(size))
    scaled = op.Mul(query, scale)
    if form.q_heads >= form.kv_heads:
        group = form.q_heads // form.kv_heads
        return op.Reshape(scaled, _ints(op, 0, 0, form.kv_heads, group, -1))
    repeated = _repeat_heads(op, scaled, form.kv_heads // form.q_heads)
    return op.Unsqueeze(repeated, _ints(op, 3))


def _repeat_heads(op: OpBuilder, x: Any, copies: int) -> Any:
    """`[T, B, heads, d]` -> `[T, B, heads * copies, d]`, copies of a head side by side."""
    if copies == 1:
        return x
    shape = op.Concat(op.Shape(x, end=2), _ints(op, -1), op.Shape(x, start=3), axis=0)
    repeated = op.Expand(op.Unsqueeze(x, _ints(op, 3)), _ints(op, 1, 1, 1, copies, 1))
    return op.Reshape(repeated, shape)


def _ints(op: OpBuilder, *values: int) -> Any:
    return op.Constant(value_ints=list(values))


def _float(op: OpBuilder, value: float) -> Any:
    return op.Constant(value_float=value)
