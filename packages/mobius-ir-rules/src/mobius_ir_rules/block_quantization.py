"""Rows of floats -> integers of a few bits with a scale for each block, and back, by numpy.

The numbers and the layout are those of ONNX Runtime's own quantizer (`BlockwiseQuantizer` of
`onnxruntime/core/mlas/lib/q4_dq.cpp`, which `MatMulNBitsQuantizer` calls), bit for bit:

* symmetric: the number of a block that is farthest from zero becomes the lowest integer, and zero
  becomes the middle one;
* asymmetric: the range of a block, widened to hold zero, is spread over all integers, and the zero
  point is the integer nearest to zero's place;
* halves are rounded away from zero, as C's `roundf` does;
* float16 scales are rounded before the integers are computed with them, bfloat16 scales after.

A row is `[K]`, its blocks are `block_size` numbers each, the last one shorter where `K` is no
multiple. Integers lie in the bytes of `com.microsoft::MatMulNBits`: low half first, each block in
bytes of its own.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BITS = (4, 8)
"""Widths of integers that are quantized to."""
BLOCK_SIZES = (16, 32, 64, 128, 256)
"""Block sizes that kernels are written for; MatMulNBits wants powers of two from 16 on."""

_CHUNK = 1 << 18  # numbers that are worked on at a time: they stay in a processor's cache
# The largest float32 below one half. What is truncated after it was added is rounded as `roundf`
# does; adding one half itself would round 0.49999997 up.
_HALF = np.float32(0.49999997)


@dataclasses.dataclass(frozen=True)
class BlockFormat:
    """How rows of a weight are quantized.

    Attributes:
        bits: Width of an integer, one of `BITS`.
        block_size: Numbers that share a scale, one of `BLOCK_SIZES`.
        symmetric: Zero is the middle integer; otherwise each block has a zero point.

    Raises:
        ValueError: naming the field that is wrong.
    """

    bits: int
    block_size: int
    symmetric: bool

    def __post_init__(self) -> None:
        """Validate."""
        for name, allowed in (("bits", BITS), ("block_size", BLOCK_SIZES)):
            value = getattr(self, name)
            if isinstance(value, bool) or value not in allowed:
                raise ValueError(f"{name} is {value!r}; needed: one of {allowed}")

    @property
    def middle(self) -> int:
        """The integer that stands for zero, where blocks have no zero points."""
        return 1 << (self.bits - 1)

    @property
    def largest(self) -> int:
        """The largest integer."""
        return (1 << self.bits) - 1

    @property
    def block_bytes(self) -> int:
        """Bytes of a block's integers."""
        return self.block_size * self.bits // 8

    def blocks(self, k: int) -> int:
        """Return the number of blocks of a row of `k` numbers."""
        return -(-k // self.block_size)

    def zero_point_bytes(self, k: int) -> int:
        """Return the bytes of a row's zero points."""
        return -(-self.blocks(k) * self.bits // 8)


@dataclasses.dataclass(frozen=True, eq=False)
class QuantizedRows:
    """Some rows, quantized.

    Attributes:
        packed: uint8 `[rows, blocks, block_bytes]`.
        scales: `[rows, blocks]`, of the rows' own dtype.
        zero_points: uint8 `[rows, zero_point_bytes]`; `None` for a symmetric format.
    """

    packed: Array
    scales: Array
    zero_points: Array | None


def quantize_rows(rows: Array, form: BlockFormat) -> QuantizedRows:
    """Return the rows, quantized.

    Args:
        rows: `[rows, K]`, float32, float16 or bfloat16. A NaN or infinity makes the scale of its
            block one; what the integers are then is not defined.
        form: How.
    """
    packed = np.empty((len(rows), form.blocks(rows.shape[1]), form.block_bytes), np.uint8)
    scales, zero_points = _quantize(rows, form, packed)
    if rows.shape[1] % form.block_size:
        _clear_padding(packed, rows.shape[1], form)
    return QuantizedRows(packed, scales, zero_points)


def block_parameters(rows: Array, form: BlockFormat) -> tuple[Array, Array | None]:
    """Return the scales and zero points of `quantize_rows`, without the integers."""
    return _quantize(rows, form, None)


def dequantize_rows(quantized: QuantizedRows, form: BlockFormat, k: int) -> Array:
    """Return `(q - zero point) * scale` as `[rows, k]`, computed in float32, in the scales' dtype.

    The difference is exact and the product is rounded once, so it is what any kernel means.
    """
    integers = unpack_integers(quantized.packed, form.bits).astype(np.float32)
    if quantized.zero_points is None:
        zeros: Any = np.float32(form.middle)
    else:
        blocks = quantized.scales.shape[1]
        zeros = unpack_integers(quantized.zero_points, form.bits)[:, :blocks, None]
        zeros = zeros.astype(np.float32)
    integers -= zeros
    integers *= quantized.scales.astype(np.float32)[:, :, None]
    rows = integers.reshape(integers.shape[0], -1)[:, :k]
    return rows.astype(quantized.scales.dtype)


def unpack_integers(packed: Array, bits: int) -> Array:
    """Return the integers of the last axis of bytes, as uint8; low half first."""
    if bits == 8:
        return packed
    halves = np.stack([packed & 0xF, packed >> 4], axis=-1)
    return halves.reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def pack_integers(integers: Array, bits: int) -> Array:
    """Return uint8 integers of the last axis, of even length for 4 bits, as bytes."""
    if bits == 8:
        return integers
    packed: Array = integers[..., ::2] | integers[..., 1::2] << 4
    return packed


def _quantize(rows: Array, form: BlockFormat, packed: Array | None) -> tuple[Array, Array | None]:
    """Return scales and zero points; write the integers into `packed`, if it is given."""
    count, k = rows.shape
    blocks = form.blocks(k)
    scales = np.empty((count, blocks), rows.dtype)
    zeros = None if form.symmetric else np.empty((count, blocks), np.uint8)
    step = max(1, min(count, _CHUNK // (blocks * form.block_size)))
    work = _Work(step * blocks, form, rows.dtype)
    for start in range(0, count, step):
        part = slice(start, start + step)
        work.load(rows[part])
        stored, zero = work.parameters()
        scales[part] = stored.reshape(-1, blocks)
        if zeros is not None:
            zeros[part] = zero.reshape(-1, blocks)
        if packed is not None:
            work.write_integers(packed[part].reshape(-1, form.block_bytes))
    return scales, None if zeros is None else _packed_zeros(zeros, form)


class _Work:
    """Some blocks, and the memory to work on them.

    Blocks are the columns of a matrix `[block_size, blocks]`: numpy works along its last axis, on
    all blocks at once instead of on the few numbers of one. All memory is allocated once: pages
    that are new each time take longer to get than to fill.
    """

    def __init__(self, blocks: int, form: BlockFormat, dtype: np.dtype[Any]) -> None:
        self._form = form
        self._dtype = dtype
        self._numbers = np.empty(blocks * form.block_size, np.float32)
        self._words = np.empty((3, blocks * form.block_size), np.uint16)
        self._bytes = np.empty(blocks * form.block_size, np.uint8)
        self._columns = self._numbers.reshape(form.block_size, -1)
        self._scale = np.empty(0, np.float32)
        self._zero = np.empty(0, np.uint8)

    def load(self, rows: Array) -> None:
        """Take rows `[rows, K]`."""
        size, k = self._form.block_size, rows.shape[1]
        missing = -k % size
        if missing:
            # A number of the same block: it changes neither the smallest nor the largest.
            rows = np.concatenate([rows, np.repeat(rows[:, -1:], missing, axis=1)], axis=1)
        turned = np.ascontiguousarray(rows).reshape(-1, size).T
        self._columns = self._numbers[: turned.size].reshape(turned.shape)
        if turned.dtype.itemsize == 4:
            np.copyto(self._columns, turned)
            return
        # Half as many bytes to turn; numpy moves plain integers faster.
        words = self._words[:, : turned.size].reshape(3, *turned.shape)
        np.copyto(words[0], turned.view(np.uint16))
        if turned.dtype == np.float16:
            _float16_to_float32(words, self._columns)
        else:
            np.copyto(self._columns, words[0].view(turned.dtype))

    def parameters(self) -> tuple[Array, Array]:
        """Return each block's scale, as it is stored, and zero point."""
        form, columns = self._form, self._columns
        low, high = columns.min(axis=0), columns.max(axis=0)
        with np.errstate(all="ignore"):
            if form.symmetric:
                extreme = np.where(np.abs(high) > np.abs(low), high, low)
                # Of zeros alone, the first gives the sign of the scale.
                np.copyto(extreme, columns[0], where=extreme == 0)
                scale = extreme / np.float32(-form.middle)
                self._zero = np.full(scale.shape, form.middle, np.uint8)
            else:
                low, high = np.minimum(low, np.float32(0)), np.maximum(high, np.float32(0))
                scale = (high - low) / np.float32(form.largest)
                place = np.where(scale == 0, low, np.float32(0) - low / scale)
                self._zero = np.empty(scale.shape, np.uint8)
                _round(place, form, self._zero)
            stored = scale.astype(self._dtype)
        # bfloat16 is no type of ONNX Runtime's quantizer: it rounds float32 scales afterwards.
        self._scale = stored.astype(np.float32) if self._dtype == np.float16 else scale
        return stored, self._zero

    def write_integers(self, out: Array) -> None:
        """Write the integers into `out` `[blocks, block_bytes]`. The numbers are lost."""
        form, columns, scale = self._form, self._columns, self._scale
        with np.errstate(all="ignore"):
            factor = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
            # Where the inverse of a scale overflows, the numbers are as good as zero.
            factor[~np.isfinite(factor)] = 0
            np.multiply(columns, factor, out=columns)
        zero = np.float32(form.middle) if form.symmetric else self._zero.astype(np.float32)
        np.add(columns, zero, out=columns)
        integers = self._bytes[: columns.size].reshape(columns.shape)
        _round(columns, form, integers)
        if form.bits == 4:
            low, high = integers[::2], integers[1::2]
            np.left_shift(high, 4, out=high)
            integers = np.bitwise_or(low, high, out=low)
        # Column by column: faster than numpy's own copy of a transpose.
        for index, each in enumerate(integers):
            out[:, index] = each


def _float16_to_float32(words: Array, out: Array) -> None:
    """Convert the float16 of `words[0]`, using the memory of the others; twice as fast as numpy.

    The bits of a finite float16, moved, are those of a float32 that is 2**112 times smaller.
    """
    half, magnitude, sign = words
    np.bitwise_and(half, 0x7FFF, out=magnitude)
    if magnitude.max(initial=0) >= 0x7C00:  # NaN or infinite
        np.copyto(out, half.view(np.float16))
        return
    bits = out.view(np.uint32)
    np.copyto(bits, magnitude)
    np.left_shift(bits, 13, out=bits)
    np.multiply(out, np.float32(2**112), out=out)
    np.bitwise_xor(half, magnitude, out=sign)
    # The sign is the highest bit of the upper half of each float32.
    upper = out.view(np.uint16).reshape(*out.shape, 2)[..., int(sys.byteorder == "little")]
    np.bitwise_or(upper, sign, out=upper)


def _round(numbers: Array, form: BlockFormat, out: Array) -> None:
    """Write the nearest integers from 0 to the largest into `out`; `numbers` are lost."""
    with np.errstate(invalid="ignore"):
        np.add(numbers, _HALF, out=numbers)
        np.clip(numbers, np.float32(0), np.float32(form.largest), out=numbers)
        np.copyto(out, numbers, casting="unsafe")


def _clear_padding(packed: Array, k: int, form: BlockFormat) -> None:
    """Set to zero what lies behind a row's last number, as ONNX Runtime leaves whole bytes of it.

    In the high half of an odd row's last byte it leaves an integer of another number.
    """
    flat = packed.reshape(packed.shape[0], -1)
    whole, rest = divmod(k * form.bits, 8)
    if rest:
        flat[:, whole] &= 0xF
        whole += 1
    flat[:, whole:] = 0


def _packed_zeros(zeros: Array, form: BlockFormat) -> Array:
    if form.bits == 4 and zeros.shape[1] % 2:
        # Behind the last zero point lies what a block without numbers would have.
        fill = np.full((zeros.shape[0], 1), form.middle, np.uint8)
        zeros = np.concatenate([zeros, fill], axis=1)
    return pack_integers(zeros, form.bits)
