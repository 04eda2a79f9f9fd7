"""The body of GatherBlockQuantized is ONNX Runtime's kernel, with and without zero points."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from mobius_ir_rules.block_quantization import unpack_integers
from mobius_ir_rules.functions.gather_block_quantized import (
    GATHER_BLOCK_QUANTIZED,
    GATHER_BLOCK_QUANTIZED_BODY,
)
from mobius_ir_rules.rule import RefusedError

ROWS = 10


@pytest.mark.parametrize("opset", [17, 24])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize(("k", "block"), [(64, 32), (48, 16), (64, 64)])
@pytest.mark.parametrize("shape", [(2, 3), (4,)])
def test_body_equals_kernel(
    run_body: Any,
    opset: int,
    dtype: Any,
    bits: int,
    zero_points: bool,
    k: int,
    block: int,
    shape: tuple[int, ...],
) -> None:
    """An odd number of blocks; ids of one axis and of two."""
    random = np.random.default_rng(0)
    blocks = k // block
    data = random.integers(0, 256, (ROWS, k * bits // 8)).astype(np.uint8)
    scales = (random.uniform(0.5, 1.5, (ROWS, blocks)) / 2**bits).astype(dtype)
    ids = random.integers(0, ROWS, shape)
    given, zero = None, np.full((ROWS, blocks), 2 ** (bits - 1))
    if zero_points:
        given = random.integers(0, 256, (ROWS, -(-blocks * bits // 8))).astype(np.uint8)
        zero = unpack_integers(given, bits)[:, :blocks]
    integers = unpack_integers(data, bits).reshape(ROWS, blocks, block).astype(np.float64)
    table = (integers - zero[..., None]) * scales[..., None]
    expected = table.reshape(ROWS, k)[ids].astype(dtype)
    results = run_body(
        GATHER_BLOCK_QUANTIZED,
        opset,
        [data, ids, scales, given],
        [expected],
        gather_axis=0,
        quantize_axis=1,
        block_size=block,
        bits=bits,
    )
    for who, (found,) in results.items():
        # Differences and products of these numbers are rounded once.
        np.testing.assert_array_equal(found, expected, err_msg=who)


def _node(dtype: ir.DataType, shape: tuple[int, ...], **attributes: int) -> ir.Node:
    data = ir.val("data", dtype, shape)
    attributes = {"quantize_axis": 1, "block_size": 32, "bits": 4, **attributes}
    inputs = [data, ir.val("ids"), ir.val("scales")]
    return ir.node("GatherBlockQuantized", inputs, attributes, domain="com.microsoft", name="n")


@pytest.mark.parametrize(
    ("dtype", "shape", "attributes", "reason"),
    [
        (
            ir.DataType.UINT4,
            (8, 64),
            {},
            "The data of com.microsoft::GatherBlockQuantized (node 'n') is UINT4 [8,64]; a matrix "
            "of UINT8 with rows of a known length is needed.",
        ),
        (
            ir.DataType.UINT8,
            (8, 2, 32),
            {},
            "The data of com.microsoft::GatherBlockQuantized (node 'n') is UINT8 [8,2,32]; a "
            "matrix of UINT8 with rows of a known length is needed.",
        ),
        (
            ir.DataType.UINT8,
            (8, 32),
            {"quantize_axis": 0},
            "com.microsoft::GatherBlockQuantized (node 'n') has gather_axis and quantize_axis "
            "(0, 0); 0 and 1 are needed.",
        ),
        (
            ir.DataType.UINT8,
            (8, 32),
            {"bits": 5},
            "com.microsoft::GatherBlockQuantized (node 'n') has bits=5; one of (2, 4, 8) is "
            "needed.",
        ),
        (
            ir.DataType.UINT8,
            (8, 24),
            {},
            "com.microsoft::GatherBlockQuantized (node 'n') has rows of 48 numbers and "
            "block_size=32; a power of two that is at least 16 and divides them is needed.",
        ),
    ],
)
def test_other_calls_have_no_body(
    dtype: ir.DataType, shape: tuple[int, ...], attributes: dict[str, int], reason: str
) -> None:
    with pytest.raises(RefusedError) as caught:
        GATHER_BLOCK_QUANTIZED_BODY.for_call(_node(dtype, shape, **attributes), 24)
    assert caught.value.reason == reason
