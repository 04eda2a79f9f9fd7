"""Packed integers in -> the float weights that they stand for, with operators of every opset.

Shared by the bodies of operators with weights of a few bits. Integers of 4 bits lie two in a byte,
the first in the low half; integers of 2 bits four in a byte. They are taken apart with float
arithmetic, which is exact up to 255 in every float type and which every runtime has for bytes.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

SUPPORTED_BITS = (2, 4, 8)


def unpack(
    op: OpBuilder, packed: ir.Value, bits: int, like: ir.Value, dtype: ir.DataType | None = None
) -> Any:
    """Return the integers of the last axis as floats of the type of `like`.

    Args:
        op: Where nodes are made.
        packed: uint8 `[..., bytes]`.
        bits: Width of an integer, one of `SUPPORTED_BITS`.
        like: Gives the type.
        dtype: The type, where it is known: nobody need find out then.
    """
    # Few runtimes have Floor in bfloat16, and the integers are exact in float16 too.
    inner = ir.DataType.FLOAT16 if dtype == ir.DataType.BFLOAT16 else dtype
    numbers = _cast(op, packed, like, inner)
    last = op.Constant(value_ints=[-1])
    width = 8
    while width > bits:
        width //= 2
        unit = _constant(op, 2**width, like, inner)
        high = op.Floor(op.Div(numbers, unit))
        low = op.Sub(numbers, op.Mul(high, unit))
        halves = op.Concat(op.Unsqueeze(low, last), op.Unsqueeze(high, last), axis=-1)
        shape = op.Concat(op.Shape(numbers, end=-1), last, axis=0)
        numbers = op.Reshape(halves, shape)
    return numbers if inner == dtype else _cast(op, numbers, like, dtype)


def dequantize(
    op: OpBuilder,
    packed: ir.Value,
    scales: ir.Value,
    zero_points: ir.Value | None,
    bits: int,
    *,
    packed_zero_points: bool,
    dtype: ir.DataType | None = None,
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
        dtype: Element type of `scales`, where it is known.
    """
    integers = unpack(op, packed, bits, scales, dtype)
    axis = op.Constant(value_ints=[-1])
    if zero_points is None:
        zero = _constant(op, 2 ** (bits - 1), scales, dtype)
    elif packed_zero_points:
        numbers = unpack(op, zero_points, bits, scales, dtype)
        first, blocks = op.Constant(value_ints=[0]), op.Shape(scales, start=-1)
        zero = op.Unsqueeze(op.Slice(numbers, first, blocks, axis), axis)
    else:
        zero = op.Unsqueeze(_cast(op, zero_points, scales, dtype), axis)
    return op.Mul(op.Sub(integers, zero), op.Unsqueeze(scales, axis))


def dequantize_stack(
    op: OpBuilder,
    packed: ir.Value,
    scales: ir.Value,
    zero_points: ir.Value | None,
    bits: int,
    dtype: ir.DataType | None = None,
) -> Any:
    """Return matrices `[matrices, rows, K]` in the type of `scales`.

    Args:
        op: Where nodes are made.
        packed: uint8 `[matrices, rows, K * bits / 8]`.
        scales: `[matrices, rows, blocks]`.
        zero_points: uint8 `[matrices, rows, ceil(blocks * bits / 8)]`; without them the middle of
            the range.
        bits: Width of an integer.
        dtype: Element type of `scales`, where it is known.
    """
    shape = op.Concat(op.Shape(scales), op.Constant(value_ints=[-1]), axis=0)
    blocks = dequantize(
        op,
        op.Reshape(packed, shape),
        scales,
        zero_points,
        bits,
        packed_zero_points=True,
        dtype=dtype,
    )
    return op.Reshape(blocks, op.Constant(value_ints=[0, 0, -1]))


def _cast(op: OpBuilder, value: ir.Value, like: ir.Value, dtype: ir.DataType | None) -> Any:
    return op.CastLike(value, like) if dtype is None else op.Cast(value, to=dtype)


def _constant(op: OpBuilder, number: int, like: ir.Value, dtype: ir.DataType | None) -> Any:
    if dtype is None:
        return op.CastLike(op.Constant(value_float=float(number)), like)
    return op.Constant(value=ir.tensor(float(number), dtype=dtype))
