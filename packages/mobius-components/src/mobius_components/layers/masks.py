"""Decoder masks: one call of a mask operator for each kind of layer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
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


def alibi_bias(op: OpBuilder, attention_mask: ir.Value, num_heads: int, dtype: ir.DataType) -> Any:
    """Return what ALiBi adds to the scores, `[B, heads, 1, T]` of `dtype`.

    Each head adds its slope times the key's index among the real tokens of its row; softmax makes
    that the distance from the query.
    Source: https://arxiv.org/abs/2108.12409, `transformers` `build_alibi_tensor`.

    Args:
        op: Builder.
        attention_mask: int64 `[B, T]`.
        num_heads: Query heads.
        dtype: Element type of the scores.
    """
    slopes = np.asarray(alibi_slopes(num_heads), np.float32).reshape(1, num_heads, 1, 1)
    index = op.Sub(op.CumSum(attention_mask, 1), 1)
    position = op.Cast(op.Unsqueeze(index, [1, 2]), to=ir.DataType.FLOAT)
    return op.Cast(op.Mul(position, op.initializer(ir.tensor(slopes), name="slopes")), to=dtype)


def additive_mask(op: OpBuilder, mask: ir.Value, bias: ir.Value, dtype: ir.DataType) -> Any:
    """Return `bias` where `mask` (bool `[B, 1, S, T]`) is true, the lowest number elsewhere."""
    return op.Where(mask, bias, float(dtype.min))


def alibi_slopes(num_heads: int) -> list[float]:
    """Return the slope of each head: powers of two, and every other one of the next power."""
    closest = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * (i + 1) / closest) for i in range(closest)]
    more = [2.0 ** (-4.0 * (2 * i + 1) / closest) for i in range(num_heads - closest)]
    return slopes + more
