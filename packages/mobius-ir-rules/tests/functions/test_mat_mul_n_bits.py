"""The body of MatMulNBits is ONNX Runtime's kernel, for every layout of zero points."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from mobius_ir_rules.functions.mat_mul_n_bits import MAT_MUL_N_BITS, MAT_MUL_N_BITS_BODY
from mobius_ir_rules.rule import RefusedError

Array = npt.NDArray[Any]
ROWS = 10


def _unpack(packed: Array, bits: int) -> Array:
    parts = [packed >> shift & (2**bits - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*packed.shape[:-1], -1)


@pytest.mark.parametrize(
    ("opset", "dtype", "tolerance"),
    [(17, np.float32, 2e-6), (24, np.float32, 2e-6), (24, np.float16, 2e-3)],
)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zero_points", ["none", "packed", "flat", "float"])
@pytest.mark.parametrize(("depth", "block"), [(64, 32), (72, 16), (40, 64)])
def test_body_equals_kernel(
    run_body: Any,
    opset: int,
    dtype: Any,
    tolerance: float,
    bits: int,
    zero_points: str,
    depth: int,
    block: int,
) -> None:
    """Whole and partial last blocks, an odd number of blocks, a bias."""
    random = np.random.default_rng(0)
    blocks = -(-depth // block)
    a = random.standard_normal((2, 3, depth)).astype(dtype)
    b = random.integers(0, 256, (ROWS, blocks, block * bits // 8)).astype(np.uint8)
    scales = (random.uniform(0.5, 1.5, (ROWS, blocks)) / 2**bits).astype(dtype)
    bias = random.standard_normal(ROWS).astype(dtype)
    zero: Array = np.full((ROWS, blocks), 2 ** (bits - 1))
    given: Array | None = None
    if zero_points == "float":
        given = random.uniform(0.0, 2**bits, (ROWS, blocks)).astype(dtype)
        zero = given
    elif zero_points != "none":
        given = random.integers(0, 256, (ROWS, -(-blocks * bits // 8))).astype(np.uint8)
        zero = _unpack(given, bits)[:, :blocks]
        given = given.reshape(-1) if zero_points == "flat" else given
    weight = (_unpack(b, bits) - zero.astype(np.float64)[..., None]) * scales[..., None]
    weight = weight.reshape(ROWS, -1)[:, :depth]
    expected = (a.astype(np.float64) @ weight.T + bias).astype(dtype)
    results = run_body(
        MAT_MUL_N_BITS,
        opset,
        [a, b, scales, given, None, bias],
        [expected],
        # The CPU kernel has no float zero points for 8 bits.
        kernel=not (bits == 8 and zero_points == "float"),
        K=depth,
        N=ROWS,
        bits=bits,
        block_size=block,
    )
    for who, (found,) in results.items():
        np.testing.assert_allclose(
            found.astype(np.float64), expected, rtol=tolerance, atol=4 * tolerance, err_msg=who
        )


def _node(inputs: str, shape: tuple[int, ...] = (8, 2, 16), **attributes: Any) -> ir.Node:
    values = [ir.val(name) if name != "-" else None for name in inputs.split()]
    if len(values) > 1 and values[1] is not None:
        values[1].shape = ir.Shape(shape)
    attributes = {"K": 64, "N": 8, "block_size": 32, **attributes}
    return ir.node("MatMulNBits", values, attributes, domain="com.microsoft", name="n")


@pytest.mark.parametrize(
    ("inputs", "shape", "attributes", "reason"),
    [
        (
            "a b s - g",
            (8, 2, 16),
            {},
            "com.microsoft::MatMulNBits (node 'n') has the input 'g_idx'; the body computes the "
            "operator without it.",
        ),
        (
            "a b s z",
            (8, 2, 16),
            {},
            "The type of the zero points of com.microsoft::MatMulNBits (node 'n') is not known; "
            "uint8 ones are packed and others are not, so it is needed.",
        ),
        (
            "a b s",
            (8, 2, 16),
            {"bits": 5},
            "com.microsoft::MatMulNBits (node 'n') has bits=5; one of (2, 4, 8) is needed.",
        ),
        (
            "a b s",
            (8, 2, 16),
            {"block_size": 24},
            "com.microsoft::MatMulNBits (node 'n') has K=64, N=8 and block_size=24; positive "
            "sizes, and a block size that is a power of two and at least 16, are needed.",
        ),
        (
            "a b s",
            (8, 2, 16),
            {"weight_prepacked": 1},
            "com.microsoft::MatMulNBits (node 'n') has weight_prepacked=1; the body computes the "
            "operator with 0 only.",
        ),
        (
            "a b s",
            (0, 2, 16),
            {},
            "The weight of com.microsoft::MatMulNBits (node 'n') is empty, which stands for a "
            "projection that is left out; one that is there is needed.",
        ),
    ],
)
def test_refusals(
    inputs: str, shape: tuple[int, ...], attributes: dict[str, Any], reason: str
) -> None:
    """C062: an order of the groups is not dropped."""
    with pytest.raises(RefusedError) as refused:
        MAT_MUL_N_BITS_BODY.for_call(_node(inputs, shape, **attributes), 24)
    assert refused.value.reason == reason
