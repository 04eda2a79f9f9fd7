"""Integers of a few bits in 32-bit words, and the bytes that `MatMulNBits` wants them in.

Arrays in, arrays out; `Computed` makes an expression of such a function, so that nothing is read
before the weight is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from mobius_hf.errors import CheckpointError
from mobius_hf.transforms import leaf
from mobius_ir_rules.block_quantization import BLOCK_SIZES, BlockFormat, pack_integers
from mobius_ir_rules.expressions import Expression
from mobius_ir_rules.quantized_weights import BlockQuantizedTensor, QuantizedWeight

Array = npt.NDArray[Any]

_WORD = 32
_WIDEST_BLOCK = 128  # kernels are written for at most this; longer groups are split


@dataclasses.dataclass(frozen=True, eq=False)
class Computed(Expression):
    """A function of some tensors of a checkpoint, with the dtype and shape that it gives."""

    function: Callable[..., Array]
    tensors: tuple[ir.TensorProtocol, ...]
    dtype: ir.DataType
    shape: tuple[int, ...]

    def leaves(self) -> Iterator[ir.Value]:
        """Yield a value for each tensor."""
        for tensor in self.tensors:
            yield leaf(tensor).value

    def array(self) -> Array:
        """Compute the data.

        Raises:
            ValueError: if the function gives another shape.
        """
        array = self.function(*(leaf(tensor).array() for tensor in self.tensors))
        if array.shape != self.shape:
            raise ValueError(f"Computed {array.shape}, declared {self.shape}")
        return np.ascontiguousarray(array, self.dtype.numpy())


def unpack_words(words: Array, bits: int) -> Array:
    """Return the integers of the last axis of 32-bit words, low bits first, as uint8.

    Args:
        words: int32 `[..., n]`.
        bits: Width of an integer, 4 or 8.
    """
    octets = np.ascontiguousarray(words).astype("<i4", copy=False).view(np.uint8)
    if bits == 8:
        return octets
    halves = np.stack([octets & 0xF, octets >> 4], axis=-1)
    return halves.reshape(*octets.shape[:-1], 2 * octets.shape[-1])


def per_word(bits: int) -> int:
    """Return how many integers a word holds."""
    return _WORD // bits


def block_size_for(group: int, k: int) -> int | None:
    """Return the block size with which groups of a row of `k` become blocks; `None` if none does.

    A group of several blocks gives each of them its scale.
    """
    if group >= k:
        fitting = [size for size in BLOCK_SIZES if size <= _WIDEST_BLOCK]
        # The last block may be longer than what is left of the row.
        return next((size for size in fitting if size >= k), _WIDEST_BLOCK)
    return max(
        (size for size in BLOCK_SIZES if size <= _WIDEST_BLOCK and group % size == 0), default=None
    )


def integers_to_blocks(integers: Array, form: BlockFormat) -> Array:
    """Return uint8 integers `[N, K]` as `[N, blocks, block_bytes]`, padded with zeros."""
    n, k = integers.shape
    missing = form.blocks(k) * form.block_size - k
    if missing:
        integers = np.concatenate([integers, np.zeros((n, missing), np.uint8)], axis=1)
    packed = pack_integers(integers, form.bits)
    return packed.reshape(n, form.blocks(k), form.block_bytes)


def bytes_to_blocks(octets: Array, k: int, form: BlockFormat) -> Array:
    """Return rows of packed integers `[N, bytes]`, as many as `k` need or more, as blocks."""
    width = form.blocks(k) * form.block_bytes
    used = -(-k * form.bits // 8)
    rows = octets[:, :used]
    if k * form.bits % 8:
        rows = rows.copy()
        rows[:, -1] &= 0xF
    if used < width:
        missing = np.zeros((rows.shape[0], width - used), np.uint8)
        rows = np.concatenate([rows, missing], axis=1)
    return np.ascontiguousarray(rows).reshape(rows.shape[0], form.blocks(k), form.block_bytes)


def per_block(values: Array, group: int, k: int, form: BlockFormat) -> Array:
    """Return a value for each block `[N, blocks]` from one for each group `[N, groups]`."""
    blocks = np.arange(form.blocks(k)) * form.block_size // min(group, k)
    return values[:, np.minimum(blocks, values.shape[1] - 1)]


def packed_zero_points(zeros: Array, form: BlockFormat) -> Array:
    """Return uint8 zero points `[N, blocks]` packed along the blocks, as `MatMulNBits` has them."""
    if form.bits == 4 and zeros.shape[1] % 2:
        middle = np.full((zeros.shape[0], 1), form.middle, np.uint8)
        zeros = np.concatenate([zeros, middle], axis=1)
    return pack_integers(zeros, form.bits)


def dequantized(integers: Array, zeros: Array, scales: Array, groups: Array) -> Array:
    """Return `(q - zero point) * scale`, float32 `[N, K]`.

    Args:
        integers: `[N, K]`.
        zeros: `[N, groups]`.
        scales: Floats `[N, groups]`.
        groups: The group of each column, `[K]`.
    """
    numbers = integers.astype(np.float32)
    numbers -= zeros.astype(np.float32)[:, groups]
    numbers *= scales.astype(np.float32)[:, groups]
    return numbers


def float_tensor(
    name: str,
    function: Callable[..., Array],
    tensors: Sequence[ir.TensorProtocol],
    shape: tuple[int, ...],
) -> ir.LazyTensor:
    """Return a float32 tensor that `function` computes of `tensors` each time it is read."""
    computed = Computed(function, tuple(tensors), ir.DataType.FLOAT, shape)

    def evaluate() -> ir.TensorProtocol:
        return ir.Tensor(computed.array(), name=name)

    return ir.LazyTensor(evaluate, ir.DataType.FLOAT, ir.Shape(shape), name=name)


def block_quantized(
    name: str,
    form: BlockFormat,
    shape: tuple[int, int],
    group: int,
    *,
    packed: tuple[Callable[..., Array], Sequence[ir.TensorProtocol]],
    scales: tuple[Callable[[Array], Array], ir.TensorProtocol],
    zeros: tuple[Callable[[Array], Array], ir.TensorProtocol] | None,
) -> BlockQuantizedTensor:
    """Return a weight as integers and scales that are read when the weight is.

    Args:
        name: The weight's name.
        form: How it is quantized.
        shape: Rows and columns, `N` and `K`.
        group: Columns that share a scale, a multiple of the block size, or `K`.
        packed: Function of tensors that gives the integers `[N, blocks, block_bytes]`.
        scales: Function of a tensor that gives the scales `[N, groups]`.
        zeros: Function of a tensor that gives unsigned zero points `[N, groups]`; not used where
            the format is symmetric.
    """
    n, k = shape
    blocks = form.blocks(k)
    read_scales, scale_tensor = scales

    def block_scales(array: Array) -> Array:
        return per_block(read_scales(array), group, k, form)

    zero_points = None
    if not form.symmetric:
        assert zeros is not None
        read_zeros, zero_tensor = zeros

        def block_zeros(array: Array) -> Array:
            return packed_zero_points(per_block(read_zeros(array), group, k, form), form)

        zero_points = Computed(
            block_zeros, (zero_tensor,), ir.DataType.UINT8, (n, form.zero_point_bytes(k))
        )
    function, tensors = packed
    weight = QuantizedWeight(
        form,
        k,
        Computed(function, tuple(tensors), ir.DataType.UINT8, (n, blocks, form.block_bytes)),
        Computed(block_scales, (scale_tensor,), scale_tensor.dtype, (n, blocks)),
        zero_points,
    )
    return BlockQuantizedTensor(weight, name)


def require_middle(zeros: Array, form: BlockFormat, name: str) -> None:
    """Check that zero points are those of a symmetric format.

    Raises:
        CheckpointError: if one is another.
    """
    if not (zeros == form.middle).all():
        raise CheckpointError(
            f"{name} has zero points other than {form.middle}, and quantization_config says that "
            "its integers are symmetric. If the zero points are right, correct config.json."
        )
