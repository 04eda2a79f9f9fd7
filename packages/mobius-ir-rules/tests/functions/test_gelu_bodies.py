"""The bodies of Gelu, BiasGelu, FastGelu and QuickGelu are ONNX Runtime's kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mobius_ir_rules.functions.bias_gelu import BIAS_GELU
from mobius_ir_rules.functions.fast_gelu import FAST_GELU
from mobius_ir_rules.functions.gelu import GELU
from mobius_ir_rules.functions.quick_gelu import QUICK_GELU

Array = npt.NDArray[Any]


def _erf(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def _tanh(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float16, 8e-3)])
@pytest.mark.parametrize("opset", [17, 19, 20, 24])
@pytest.mark.parametrize(
    ("operator", "formula", "biased"),
    [
        (BIAS_GELU, _erf, True),
        (FAST_GELU, _tanh, True),
        (FAST_GELU, _tanh, False),
        (GELU, _erf, False),
    ],
)
def test_erf_and_tanh(
    run_body: Any,
    operator: tuple[str, str],
    formula: Callable[[Array], Array],
    biased: bool,
    opset: int,
    dtype: type,
    tolerance: float,
) -> None:
    """C003: erf and tanh differ by up to 4.7e-4, so float32 is compared to 1e-6."""
    x = np.linspace(-4.0, 4.0, 96).reshape(2, 3, 16).astype(dtype)
    bias = np.linspace(-0.1, 0.1, 16).astype(dtype)
    wide = x.astype(np.float64)
    expected = formula(wide + bias if biased else wide).astype(dtype)
    # The CPU provider has these kernels in float32 only.
    results = run_body(
        operator,
        opset,
        [x, bias] if biased else [x],
        [expected],
        kernel=dtype is np.float32,
        inline_for_reference=opset >= 20,
    )
    for who, (found,) in results.items():
        np.testing.assert_allclose(
            found.astype(np.float64), expected, rtol=0, atol=tolerance, err_msg=who
        )


@pytest.mark.parametrize("attributes", [{}, {"alpha": 1.3}])
@pytest.mark.parametrize("opset", [17, 24])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float16, 8e-3)])
def test_quick_gelu(
    run_body: Any, opset: int, attributes: dict[str, float], dtype: type, tolerance: float
) -> None:
    """The default of alpha is 1.702."""
    x = np.linspace(-4.0, 4.0, 96).reshape(2, 48).astype(dtype)
    wide = x.astype(np.float64)
    expected = (wide / (1.0 + np.exp(-attributes.get("alpha", 1.702) * wide))).astype(dtype)
    results = run_body(QUICK_GELU, opset, [x], [expected], kernel=dtype is np.float32, **attributes)
    for who, (found,) in results.items():
        np.testing.assert_allclose(
            found.astype(np.float64), expected, rtol=0, atol=tolerance, err_msg=who
        )
