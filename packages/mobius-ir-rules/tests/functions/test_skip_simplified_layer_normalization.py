"""SkipSimplifiedLayerNormalization's body is ONNX Runtime's kernel, output by output."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mobius_ir_rules.functions.skip_simplified_layer_normalization import (
    SKIP_SIMPLIFIED_LAYER_NORMALIZATION,
    skip_simplified_layer_normalization,
)

EPSILON = 1e-3  # large enough to show when it is dropped


def _expected(
    x: npt.NDArray[Any], skip: npt.NDArray[Any], gamma: npt.NDArray[Any]
) -> list[npt.NDArray[Any]]:
    total = x.astype(np.float64) + skip
    inverse = 1.0 / np.sqrt(np.mean(total**2, axis=-1, keepdims=True) + EPSILON)
    return [
        (total * inverse * gamma).astype(x.dtype),
        np.zeros_like(inverse, dtype=np.float32),
        inverse.astype(np.float32),
        total.astype(x.dtype),
    ]


@pytest.mark.parametrize("shape", [(2, 3, 16), (5, 16)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float16, 4e-3)])
@pytest.mark.parametrize("opset", [17, 18, 22, 23, 24])
def test_body_equals_kernel(
    run_body: Any, opset: int, dtype: type, tolerance: float, shape: tuple[int, ...]
) -> None:
    """C010: all four outputs, the sum last. C067: formals in the order of the schema."""
    random = np.random.default_rng(0)
    x, skip = (random.standard_normal(shape).astype(dtype) for _ in range(2))
    gamma = (1.0 + 0.3 * random.standard_normal(shape[-1])).astype(dtype)
    expected = _expected(x, skip, gamma)
    results = run_body(
        SKIP_SIMPLIFIED_LAYER_NORMALIZATION, opset, [x, skip, gamma], expected, epsilon=EPSILON
    )
    for who, outputs in results.items():
        for index, (found, right) in enumerate(zip(outputs, expected, strict=True)):
            np.testing.assert_allclose(
                found.astype(np.float64),
                right.astype(np.float64),
                rtol=tolerance,
                atol=tolerance,
                err_msg=f"{who}, output {index}",
            )


@pytest.mark.parametrize("opset", [17, 22, 23, 24])
def test_float16_rows_of_large_magnitude_do_not_overflow(run_body: Any, opset: int) -> None:
    """C027: magnitude 8000 squared is past float16; the square is taken in float32.

    ONNX's reference RMSNormalization ignores `stash_type` and overflows: it is left out at 23+.
    """
    random = np.random.default_rng(1)
    x = (8000.0 * random.standard_normal((1, 2, 64))).astype(np.float16)
    skip = random.standard_normal((1, 2, 64)).astype(np.float16)
    gamma = np.ones(64, np.float16)
    expected = _expected(x, skip, gamma)
    results = run_body(
        SKIP_SIMPLIFIED_LAYER_NORMALIZATION, opset, [x, skip, gamma], expected, epsilon=EPSILON
    )
    if opset >= 23:
        del results["reference"]
    for who, outputs in results.items():
        np.testing.assert_allclose(
            outputs[0].astype(np.float64), expected[0], rtol=1e-2, atol=1e-2, err_msg=who
        )


def test_epsilon_default_is_the_schema_s(run_body: Any) -> None:
    """ONNX Runtime's schema has 1e-12, the standard norms have 1e-5."""
    x = np.full((1, 1, 4), 1e-4, np.float32)
    zero, one = np.zeros_like(x), np.ones(4, np.float32)
    expected = [
        one.reshape(1, 1, 4),
        np.zeros((1, 1, 1), np.float32),
        np.full((1, 1, 1), 10000.0, np.float32),
        x,
    ]
    results = run_body(SKIP_SIMPLIFIED_LAYER_NORMALIZATION, 24, [x, zero, one], expected)
    for who, outputs in results.items():
        np.testing.assert_allclose(outputs[0], expected[0], rtol=1e-4, err_msg=who)


def test_body_is_standard_and_imports_the_asked_opset() -> None:
    """C105, C106: only standard operators, at the model's opset."""
    function = skip_simplified_layer_normalization(23)
    assert dict(function.opset_imports) == {"": 23}
    assert {node.domain for node in function.all_nodes()} == {""}
    assert [value.name for value in function.inputs] == ["input", "skip", "gamma"]


def test_older_opset_is_refused() -> None:
    """Below opset 17 nothing is promised."""
    with pytest.raises(ValueError, match="needs opset 17 or later, found opset 16"):
        skip_simplified_layer_normalization(16)
