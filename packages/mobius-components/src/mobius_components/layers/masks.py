"""Decoder masks: one call of a mask operator for each kind of layer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions import masks


def decoder_mask(
    op: OpBuilder,
    attention_mask: ir.Value,
    position_ids: ir.Value,
    window: int | None = None,
    chunk: int | None = None,
) -> Any:
    """Return the causal mask, bool `[B, 1, S, T]`, limited to a window or to chunks if asked.

    Args:
        op: Builder.
        attention_mask: int64 `[B, T]`, 1 for a real token, 0 for padding.
        position_ids: int64 `[B, S]`, see `mobius_ir_rules.functions.masks`.
        window: Tokens that a query sees, itself included.
        chunk: Tokens of a chunk, of which a query sees its own only; not beside a window.
    """
    opset_version = op.version
    assert opset_version is not None
    if chunk is not None:
        mask = op.call(masks.chunked_mask(opset_version), attention_mask, position_ids, chunk=chunk)
    elif window is None:
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


def alibi_bias(
    op: OpBuilder,
    attention_mask: ir.Value,
    num_heads: int,
    dtype: ir.DataType,
    *,
    bias_max: float = 8.0,
    scale: float = 1.0,
    bfloat16: bool = False,
) -> Any:
    """Return what ALiBi adds to the scores, `[B, heads, 1, T]` of `dtype`.

    Each head adds its slope times the key's index among the real tokens of its row; softmax makes
    that the distance from the query.
    Source: https://arxiv.org/abs/2108.12409, `transformers` `build_alibi_tensor`.

    Args:
        op: Builder.
        attention_mask: int64 `[B, T]`.
        num_heads: Query heads.
        dtype: Element type of the scores.
        bias_max: Exponent of two that the last slope has.
        scale: Factor of the bias.
        bfloat16: Slopes, positions and their products are rounded to bfloat16, as `transformers`
            does for Falcon (`build_alibi_tensor` of `modeling_falcon`), which was trained so.
    """
    slopes = np.asarray(alibi_slopes(num_heads, bias_max), np.float32).reshape(1, num_heads, 1, 1)
    index = op.Sub(op.CumSum(attention_mask, 1), 1)
    position = op.Cast(op.Unsqueeze(index, [1, 2]), to=ir.DataType.FLOAT)
    if bfloat16:
        slopes = slopes.astype(ir.DataType.BFLOAT16.numpy()).astype(np.float32)
        position = _round_to_bfloat16(op, position)
    bias = op.Mul(position, op.initializer(ir.tensor(slopes), name="slopes"))
    if bfloat16:
        bias = _round_to_bfloat16(op, bias)
    if scale != 1.0:
        bias = op.Mul(bias, scale)
    return op.Cast(bias, to=dtype)


def _round_to_bfloat16(op: OpBuilder, x: ir.Value) -> Any:
    """Return float32 `x` rounded to the 8 bits of a bfloat16's significand, still float32.

    Source: T. J. Dekker, A floating-point technique for extending the available precision, 1971.
    A Cast there and back would need kernels that few execution providers have.
    """
    split = op.Mul(x, 65537.0)
    return op.Sub(split, op.Sub(split, x))


def additive_mask(op: OpBuilder, mask: ir.Value, bias: ir.Value, dtype: ir.DataType) -> Any:
    """Return `bias` where `mask` (bool `[B, 1, S, T]`) is true, the lowest number elsewhere."""
    return op.Where(mask, bias, float(dtype.min))


def alibi_slopes(num_heads: int, bias_max: float = 8.0) -> list[float]:
    """Return the slope of each head: powers of two, and every other one of the next power."""
    closest = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-bias_max * (i + 1) / closest) for i in range(closest)]
    more = [2.0 ** (-bias_max * (i + 0.5) / closest) for i in range(num_heads - closest)]
    return slopes + more
