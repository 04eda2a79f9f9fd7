"""Decoder masks: one call of a mask operator for each kind of layer."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions import masks


def decoder_mask(
    op: OpBuilder, attention_mask: ir.Value, position_ids: ir.Value, window: int | None
) -> Any:
    """Return the causal mask, bool `[B, 1, S, T]`, with a window where `window` is not `None`.

    Args:
        op: Builder.
        attention_mask: int64 `[B, T]`, 1 for a real token, 0 for padding.
        position_ids: int64 `[B, S]`, see `mobius_ir_rules.functions.masks`.
        window: Tokens that a query sees, itself included.
    """
    opset_version = op.version
    assert opset_version is not None
    if window is None:
        mask = op.call(masks.causal_mask(opset_version), attention_mask, position_ids)
    else:
        function = masks.sliding_window_mask(opset_version)
        mask = op.call(function, attention_mask, position_ids, window=window)
    # A call has no schema to infer from; what follows needs to know the mask's type.
    mask.type = ir.TensorType(ir.DataType.BOOL)
    if attention_mask.shape is not None and position_ids.shape is not None:
        batch, queries = position_ids.shape
        mask.shape = ir.Shape([batch, 1, queries, attention_mask.shape[1]])
    return mask
