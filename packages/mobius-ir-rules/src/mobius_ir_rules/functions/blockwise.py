"""Packed integers in -> the float weights that they stand for, with operators of every opset.

Shared by the bodies of `MatMulNBits` and `QMoE`. Integers of 4 bits lie two in a byte, the first
in the low half; integers of 2 bits four in a byte. They are taken apart with float arithmetic,
which is exact up to 255 in every float type and which every runtime has for bytes.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

SUPPORTED_BITS = (2, 4, 8)


def unpack(op: OpBuilder, packed: ir.Value, bits: int, like: ir.Value) -> Any:
    """Return the integers of the last axis as floats of the type of `like`.

    Args:
        op: Where nodes are made.
        packed: uint8 `[..., bytes]`.
        bits: Width of an integer, one of `SUPPORTED_BITS`.
        like: Gives the type.
    """
    numbers = op.CastLike(packed, like)
    last = op.Constant(value_ints=[-1])
    width = 8
    while width > bits:
        width //= 2
        unit = op.CastLike(op.Constant(value_float=float(2**width)), like)
        high = op.Floor(op.Div(numbers, unit))
        low = op.Sub(numbers, op.Mul(high, unit))
        halves = op.Concat(op.Unsqueeze(low, last), op.Unsqueeze(high, last), axis=-1)
        shape = op.Concat(op.Shape(numbers, end=-1), last, axis=0)
        numbers = op.Reshape(halves, shape)
    return numbers


def dequantize(
    op: OpBuilder,
    packed: ir.Value,
    scales: ir.Value,
    zero_points: ir.Value | None,
    bits: int,
    *,
    packed_zero_points: bool,
) -> Any:
    """Return `(q - zero_point) * scale`, `[..., blocks, block_size]`, in the type of `scales`.

    Args:
        op: Where nodes are made.
        packed: uint8 `[..., blocks, block_size * bits / 8]`.
        scales: `[..., blocks]`.
        zero_points: Packed along the blocks, uint8 `[..., ceil(blocks * bits / 8)]`, or floats in
            the shape of `scales`; without them the middle of the range.
        bits: Width of an integer.
        packed_zero_points: Which of the two they are.
    """
    integers = unpack(op, packed, bits, scales)
    axis = op.Constant(value_ints=[-1])
    if zero_points is None:
        zero = op.CastLike(op.Constant(value_float=float(2 ** (bits - 1))), scales)
    else:
        numbers = zero_points
        if packed_zero_points:
            numbers = op.Slice(
                unpack(op, zero_points, bits, scales),
                op.Constant(value_ints=[0]),
                op.Shape(scales, start=-1),
                axis,
            )
        zero = op.Unsqueeze(op.CastLike(numbers, scales), axis)
    return op.Mul(op.Sub(integers, zero), op.Unsqueeze(scales, axis))
