"""FusedMatMul's body is ONNX Runtime's kernel for every combination of its attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mobius_ir_rules.functions.fused_mat_mul import FUSED_MAT_MUL


@pytest.mark.parametrize("attributes", range(16))
@pytest.mark.parametrize("opset", [17, 18, 24])
def test_body_equals_kernel(run_body: Any, opset: int, attributes: int) -> None:
    """C094: all 16 combinations of transposes and moved batches, rank 4, with a scale."""
    trans_a, trans_b, batch_a, batch_b = (attributes >> bit & 1 for bit in range(4))
    random = np.random.default_rng(0)
    left = random.standard_normal((2, 3, 4, 5)).astype(np.float32)
    right = random.standard_normal((2, 3, 5, 6)).astype(np.float32)
    expected = np.float32(0.5) * (left @ right)
    a = np.swapaxes(left, -1, -2) if trans_a else left
    b = np.swapaxes(right, -1, -2) if trans_b else right
    a = np.moveaxis(a, -2, 0) if batch_a else a
    b = np.moveaxis(b, -2, 0) if batch_b else b
    results = run_body(
        FUSED_MAT_MUL,
        opset,
        [np.ascontiguousarray(a), np.ascontiguousarray(b)],
        [expected],
        alpha=0.5,
        transA=trans_a,
        transB=trans_b,
        transBatchA=batch_a,
        transBatchB=batch_b,
    )
    for who, (found,) in results.items():
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=who)


@pytest.mark.parametrize(
    ("a", "b", "attributes"),
    [
        ((3, 4), (5, 4), {"transB": 1}),
        ((4, 3), (4, 5), {"transA": 1}),
        ((2, 3, 4), (5, 4), {"transB": 1}),
        ((4,), (2, 5, 4), {"transB": 1}),
        ((0, 4, 3), (0, 4, 5), {"transA": 1}),
        ((2, 3, 4), (2, 4, 5), {}),
    ],
)
def test_ranks_broadcasting_and_defaults(
    run_body: Any, a: tuple[int, ...], b: tuple[int, ...], attributes: dict[str, int]
) -> None:
    """Ranks 1 to 3, an empty batch, attributes left out."""
    random = np.random.default_rng(0)
    left = random.standard_normal(a).astype(np.float32)
    right = random.standard_normal(b).astype(np.float32)
    expected = np.matmul(
        np.swapaxes(left, -1, -2) if "transA" in attributes else left,
        np.swapaxes(right, -1, -2) if "transB" in attributes else right,
    )
    results = run_body(FUSED_MAT_MUL, 24, [left, right], [expected], **attributes)
    for who, (found,) in results.items():
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=who)


def test_float16(run_body: Any) -> None:
    """The CPU provider has no float16 kernel; the body runs wherever MatMul does."""
    random = np.random.default_rng(0)
    a = random.standard_normal((2, 3, 4)).astype(np.float16)
    b = random.standard_normal((2, 5, 4)).astype(np.float16)
    expected = (0.5 * np.matmul(a.astype(np.float32), np.swapaxes(b, 1, 2))).astype(np.float16)
    results = run_body(FUSED_MAT_MUL, 24, [a, b], [expected], kernel=False, transB=1, alpha=0.5)
    for who, (found,) in results.items():
        np.testing.assert_allclose(
            found.astype(np.float32), expected, rtol=4e-3, atol=4e-3, err_msg=who
        )
