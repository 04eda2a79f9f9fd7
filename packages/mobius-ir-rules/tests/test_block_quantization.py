"""Quantized rows are ONNX Runtime's, bit for bit, and dequantize to what its kernel multiplies."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from onnxruntime.quantization.matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    DefaultWeightOnlyQuantizer,
)

from mobius_ir_rules import block_quantization
from mobius_ir_rules.block_quantization import (
    BlockFormat,
    block_parameters,
    dequantize_rows,
    pack_integers,
    quantize_rows,
    unpack_integers,
)

Array = npt.NDArray[Any]
FORMATS = [
    BlockFormat(bits, size, symmetric)
    for bits in (4, 8)
    for size in (16, 32, 64, 128, 256)
    for symmetric in (True, False)
]
# Whole blocks; a last block that is shorter, of whole bytes and not; less than a block.
WIDTHS = (256, 100, 33, 10)


def hard_rows(k: int, dtype: Any) -> Array:
    """Return rows whose rounding is not obvious."""
    random = np.random.default_rng(k)
    rows = random.standard_normal((24, k)) * random.choice([1e-3, 1.0, 30.0], (24, 1))
    rows[0] = 0.0
    rows[1] = np.abs(rows[1])
    rows[2] = -np.abs(rows[2])
    rows[3] = 0.5  # no number of the block is its own
    rows[4] = np.round(rows[4] * 4) / 4  # halves between integers, zeros of both signs
    rows[5, ::2] = 0.0
    rows[6] = random.choice([-1.0, 1.0], k)  # as far below zero as above
    rows[7] *= 1e-7  # below the smallest normal float16
    rows[8] = random.choice([-0.0, 0.0], k)
    return rows.astype(dtype)


def of_onnxruntime(rows: Array, form: BlockFormat) -> tuple[Array, Array, Array]:
    """Return packed integers, scales and zero points as ONNX Runtime's quantizer has them."""
    quantizer = DefaultWeightOnlyQuantizer(
        DefaultWeightOnlyQuantConfig(
            block_size=form.block_size, is_symmetric=form.symmetric, bits=form.bits
        )
    )
    packed, scales, zero_points = quantizer.qbits_block_quant(np.ascontiguousarray(rows.T))
    rest = rows.shape[1] * form.bits % 8
    if rest:
        # Behind the last number of an odd row it leaves an integer of another number; ours is 0.
        packed.reshape(len(rows), -1)[:, rows.shape[1] * form.bits // 8] &= 0xF
    return packed, scales, zero_points


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("k", WIDTHS)
def test_integers_scales_and_zero_points_are_those_of_onnxruntime(
    k: int, dtype: Any, form: BlockFormat
) -> None:
    rows = hard_rows(k, dtype)
    packed, scales, zero_points = of_onnxruntime(rows, form)
    found = quantize_rows(rows, form)
    np.testing.assert_array_equal(found.packed, packed)
    assert found.scales.dtype == scales.dtype == dtype
    np.testing.assert_array_equal(found.scales.view(np.uint8), scales.view(np.uint8))
    if form.symmetric:
        assert found.zero_points is None
    else:
        np.testing.assert_array_equal(found.zero_points, zero_points)


@pytest.mark.parametrize("symmetric", [True, False])
def test_bfloat16_is_quantized_as_float32_with_rounded_scales(symmetric: bool) -> None:
    # As MatMulNBitsQuantizer does.
    rows = hard_rows(96, ml_dtypes.bfloat16)
    form = BlockFormat(4, 32, symmetric)
    packed, scales, zero_points = of_onnxruntime(rows.astype(np.float32), form)
    found = quantize_rows(rows, form)
    np.testing.assert_array_equal(found.packed, packed)
    assert found.scales.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(
        found.scales.view(np.uint16), scales.astype(ml_dtypes.bfloat16).view(np.uint16)
    )
    if not symmetric:
        np.testing.assert_array_equal(found.zero_points, zero_points)


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_parameters_alone_are_those_of_the_whole(form: BlockFormat) -> None:
    rows = hard_rows(100, np.float32)
    found = quantize_rows(rows, form)
    scales, zero_points = block_parameters(rows, form)
    np.testing.assert_array_equal(scales, found.scales)
    if form.symmetric:
        assert zero_points is None
    else:
        np.testing.assert_array_equal(zero_points, found.zero_points)


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_no_number_is_further_away_than_its_step(form: BlockFormat) -> None:
    rows = np.random.default_rng(3).standard_normal((8, 200), np.float32)
    found = dequantize_rows(quantize_rows(rows, form), form, 200)
    scales, _ = block_parameters(rows, form)
    steps = np.repeat(np.abs(scales), form.block_size, axis=1)[:, :200]
    # Half a step; the end of a symmetric range that has one integer less, and a rounded zero
    # point, can take up to one.
    assert (np.abs(found - rows) <= steps * 1.0001).all()
    assert (np.abs(found - rows) <= steps * 0.5001).mean() > 0.9


def test_the_size_of_what_is_worked_on_at_a_time_does_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, form = hard_rows(100, np.float32), BlockFormat(4, 32, False)
    whole = quantize_rows(rows, form)
    monkeypatch.setattr(block_quantization, "_CHUNK", 250)
    parts = quantize_rows(rows, form)
    np.testing.assert_array_equal(parts.packed, whole.packed)
    np.testing.assert_array_equal(parts.scales, whole.scales)
    np.testing.assert_array_equal(parts.zero_points, whole.zero_points)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_number_that_is_not_finite_shows_in_its_scale(bad: float, symmetric: bool) -> None:
    rows = np.ones((2, 64), np.float32)
    rows[1, 40] = bad
    scales = quantize_rows(rows, BlockFormat(4, 32, symmetric)).scales
    np.testing.assert_array_equal(np.isfinite(scales), [[True, True], [True, False]])


@pytest.mark.parametrize("bits", [4, 8])
def test_integers_are_packed_low_half_first(bits: int) -> None:
    integers = np.arange(6, dtype=np.uint8).reshape(1, 6)
    packed = pack_integers(integers, bits)
    assert packed.tolist() == [[0x10, 0x32, 0x54]] if bits == 4 else integers.tolist()
    np.testing.assert_array_equal(unpack_integers(packed, bits), integers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 32, True), r"bits is 3; needed: one of \(4, 8\)"),
        ((4, 24, True), r"block_size is 24; needed: one of \(16, 32, 64, 128, 256\)"),
        ((True, 32, True), "bits is True"),
    ],
)
def test_formats_without_kernels_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BlockFormat(*arguments)
