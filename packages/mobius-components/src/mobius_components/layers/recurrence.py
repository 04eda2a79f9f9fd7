"""Calls of the operators that carry a state from token to token, in float32 whatever the build is.

Decays close to one, multiplied over thousands of tokens, do not survive 16 bits.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_components.layers.state import StateSpec
from mobius_ir_rules.functions.gated_recurrence import GATED_RECURRENCE
from mobius_ir_rules.functions.selective_scan import SELECTIVE_SCAN
from mobius_ir_rules.values import MICROSOFT


def recurrent_state(*shape: int) -> StateSpec:
    """Return the spec of a float32 state of `shape` for each row."""
    return StateSpec("recurrent_state", ("batch", *shape), ir.DataType.FLOAT)


def to_float(op: OpBuilder, x: ir.Value) -> Any:
    """Return `x` as float32."""
    return x if x.dtype == ir.DataType.FLOAT else op.Cast(x, to=ir.DataType.FLOAT)


def to_type_of(op: OpBuilder, x: ir.Value, other: ir.Value) -> Any:
    """Return `x` in the element type of `other`."""
    return x if x.dtype == other.dtype else op.Cast(x, to=other.dtype)


def linear_attention(
    op: OpBuilder,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    past: ir.Value,
    decay: ir.Value,
    beta: ir.Value | None = None,
    *,
    query_heads: int,
    value_heads: int,
    scale: float,
) -> tuple[Any, Any]:
    """Return what queries read from a state, `[B, S, value_heads * dv]`, and the last state.

    Emits `com.microsoft::LinearAttention`, see `mobius_ir_rules.functions.linear_attention`.

    Args:
        op: Builder.
        query: float32 `[B, S, query_heads * dk]`; each serves `value_heads / query_heads` states.
        key: float32 `[B, S, key_heads * dk]`; each serves as many.
        value: float32 `[B, S, value_heads * dv]`.
        past: float32 `[B, value_heads, dk, dv]`.
        decay: float32 `[B, S, value_heads]`, logarithm of the factor of a head's state.
        beta: float32 `[B, S, value_heads]` for the delta rule; `None` for adding.
        query_heads: Heads of queries.
        value_heads: Heads of values.
        scale: Factor of the output.
    """
    y, present = op.LinearAttention(
        query,
        key,
        value,
        past,
        decay,
        *([] if beta is None else [beta]),
        q_num_heads=query_heads,
        kv_num_heads=value_heads,
        update_rule="gated" if beta is None else "gated_delta",
        scale=scale,
        _domain=MICROSOFT,
        _version=1,
        _outputs=2,
    )
    return _typed(y, value), _typed(present, past)


def selective_scan(
    op: OpBuilder,
    x: ir.Value,
    time_step: ir.Value,
    decay: ir.Value,
    write: ir.Value,
    read: ir.Value,
    past: ir.Value,
) -> tuple[Any, Any]:
    """Return what is read from each channel's state, `[B, S, channels]`, and the last state.

    Emits `mobius.recurrence::SelectiveScan`, see `mobius_ir_rules.functions.selective_scan`.
    """
    y, present = op.SelectiveScan(
        x,
        time_step,
        decay,
        write,
        read,
        past,
        _domain=SELECTIVE_SCAN[0],
        _version=1,
        _outputs=2,
    )
    return _typed(y, x), _typed(present, past)


def gated_recurrence(
    op: OpBuilder, x: ir.Value, decay: ir.Value, past: ir.Value
) -> tuple[Any, Any]:
    """Return each channel's state after each token, `[B, S, channels]`, and after the last.

    Emits `mobius.recurrence::GatedRecurrence`, see `mobius_ir_rules.functions.gated_recurrence`.
    """
    y, present = op.GatedRecurrence(
        x, decay, past, _domain=GATED_RECURRENCE[0], _version=1, _outputs=2
    )
    return _typed(y, x), _typed(present, past)


def _typed(value: ir.Value, like: ir.Value) -> ir.Value:
    """Give `value` type and shape: there is no schema to infer them from."""
    value.type, value.shape = like.type, like.shape
    return value
