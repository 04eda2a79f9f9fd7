"""`last_token`: of the states of all tokens, those of each row's last one."""

from __future__ import annotations

import sys
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder


def last_token(
    op: OpBuilder, states: ir.Value, input_ids: ir.Value, attention_mask: ir.Value
) -> Any:
    """Return the states of the last real token of this call in each row.

    Rows may be padded on either side. A row without a real token gives its first position, whose
    states mean nothing.

    Args:
        op: Builder.
        states: `[B, S, width]`.
        input_ids: `[B, S]`; only its shape matters.
        attention_mask: int64 `[B, T]`, 1 for a real token; its last `S` columns are of this call.

    Returns:
        `[B, 1, width]`.
    """
    length = op.Shape(input_ids, start=1, end=2)
    mask = op.Slice(attention_mask, op.Neg(length), [sys.maxsize], [1])
    offsets = op.Range(0, op.Squeeze(length), 1)
    last = op.ReduceMax(op.Mul(mask, offsets), [1], keepdims=1)
    return op.GatherND(states, op.Unsqueeze(last, [2]), batch_dims=1)
