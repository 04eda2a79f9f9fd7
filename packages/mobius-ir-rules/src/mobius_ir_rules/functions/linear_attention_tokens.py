"""`LinearAttention` token by token: for one token, and for decays of the rows of a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnxscript import OpBuilder

from mobius_ir_rules.functions.linear_attention_form import LinearAttentionForm, scaled_queries
from mobius_ir_rules.functions.token_loop import each_part, unstacked


def attend_one_token(
    op: OpBuilder, form: LinearAttentionForm, inputs: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Return the output `[B, 1, heads * dv]` and the last state, both float32.

    Args:
        op: Builder.
        form: What decides the nodes.
        inputs: The call's inputs by name, float32, and a state.
    """
    axis = _ints(op, 0)
    tokens = _prepare(op, form, inputs)
    token = {name: op.Squeeze(value, axis) for name, value in tokens.items()}
    state, attended = _update(op, token, inputs["past_state"])
    return _packed(op, op.Unsqueeze(attended, axis)), state


def attend_by_tokens(
    op: OpBuilder, form: LinearAttentionForm, inputs: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Return the output `[B, T, heads * dv]` and the last state, both float32, from one `Loop`.

    Args:
        op: Builder.
        form: What decides the nodes.
        inputs: The call's inputs by name, float32, and a state.
    """
    tokens = _prepare(op, form, inputs)
    state, stacked = each_part(op, tokens, inputs["past_state"], _update, rank=4)
    return _packed(op, unstacked(op, stacked, tokens["query"], 4)), state


def _packed(op: OpBuilder, x: Any) -> Any:
    """`[T, B, kv_heads, group, dv]` -> `[B, T, heads * dv]`."""
    return op.Reshape(op.Transpose(x, perm=[1, 0, 2, 3, 4]), _ints(op, 0, 0, -1))


def _prepare(op: OpBuilder, form: LinearAttentionForm, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what each token brings, tokens first and ready for `_update`."""
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
        beta = op.Transpose(inputs["beta"], perm=[1, 0, 2])
        tokens["beta"] = op.Unsqueeze(beta, _ints(op, 3, 4))
        tokens["asked"] = op.Unsqueeze(split["key"], rows)
    return tokens


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


def _token_major(op: OpBuilder, x: Any, heads: int) -> Any:
    """`[B, T, heads * d]` -> `[T, B, heads, d]`."""
    return op.Transpose(op.Reshape(x, _ints(op, 0, 0, heads, -1)), perm=[1, 0, 2, 3])


def _group_queries(op: OpBuilder, form: LinearAttentionForm, query: Any) -> Any:
    """`[T, B, q_heads, dk]` -> `[T, B, kv_heads, group, dk]`, times the scale."""
    scaled = scaled_queries(op, form, query)
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
