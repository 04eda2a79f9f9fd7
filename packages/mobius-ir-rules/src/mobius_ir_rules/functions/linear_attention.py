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

**Form.** Chunks of tokens (`linear_attention_chunks`). Straight-line nodes, without a loop, where
the call says that there is one token, and one `Loop` over tokens where a decay is, or may be, one a
row of the state (`linear_attention_tokens`): such decays leave no product of matrices within a
chunk. The state and all arithmetic are float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.calls import CallBody, make_call_body
from mobius_ir_rules.functions.linear_attention_chunks import attend_in_chunks
from mobius_ir_rules.functions.linear_attention_form import (
    INPUTS,
    LinearAttentionForm,
    read_linear_attention,
)
from mobius_ir_rules.functions.linear_attention_tokens import attend_by_tokens, attend_one_token
from mobius_ir_rules.values import MICROSOFT

LINEAR_ATTENTION = (MICROSOFT, "LinearAttention")

_OUTPUTS = ("output", "present_state")


def build_linear_attention(form: LinearAttentionForm, opset_version: int) -> ir.Function:
    """Return the body of LinearAttention for the form and `opset_version`."""

    def body(op: OpBuilder, inputs: Mapping[str, ir.Value]) -> Any:
        ready: dict[str, Any] = {
            name: op.Cast(value, to=ir.DataType.FLOAT) if name in form.casts else value
            for name, value in inputs.items()
        }
        if "past_state" not in ready:
            ready["past_state"] = _no_state(op, form, ready)
        results = []
        for found, like in zip(_attend(op, form, ready), ("query", "past_state"), strict=True):
            like = like if like in form.given else "query"
            results.append(op.CastLike(found, inputs[like]) if like in form.casts else found)
        return tuple(results)[: form.outputs]

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
        INPUTS,
        form.given,
        _OUTPUTS[: form.outputs],
        attributes,
        body,
        opset_version,
    )


LINEAR_ATTENTION_BODY = CallBody(read_linear_attention, build_linear_attention)
"""Row of the table of bodies."""


def _attend(op: OpBuilder, form: LinearAttentionForm, inputs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the output and the last state, both float32."""
    if form.single:
        return attend_one_token(op, form, inputs)
    if "decay" in form.given and "decay" not in form.per_head:
        return attend_by_tokens(op, form, inputs)
    return attend_in_chunks(op, form, inputs)


def _no_state(op: OpBuilder, form: LinearAttentionForm, inputs: Mapping[str, Any]) -> Any:
    """Return zeros `[B, kv_heads, dk, dv]`."""
    key, value = (
        op.Div(op.Shape(inputs[name], start=2, end=3), op.Constant(value_ints=[heads]))
        for name, heads in (("key", form.k_heads), ("value", form.kv_heads))
    )
    batch = op.Shape(inputs["key"], end=1)
    shape = op.Concat(batch, op.Constant(value_ints=[form.kv_heads]), key, value, axis=0)
    return op.Expand(op.Constant(value_float=0.0), shape)
