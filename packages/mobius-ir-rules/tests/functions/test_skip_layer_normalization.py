"""SkipLayerNormalization's body is ONNX Runtime's kernel, output by output."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import pytest

from mobius_ir_rules.functions.skip_layer_normalization import (
    SKIP_LAYER_NORMALIZATION,
    skip_layer_normalization,
)

EPSILON = 1e-2  # large enough to show when it is dropped


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float16, 4e-3)])
@pytest.mark.parametrize("opset", [17, 18, 22, 23, 24])
def test_body_equals_kernel(run_body: Any, opset: int, dtype: type, tolerance: float) -> None:
    """C010: all four outputs, the sum last; the sum's mean is far from zero."""
    random = np.random.default_rng(0)
    x, skip = ((3.0 + random.standard_normal((2, 3, 16))).astype(dtype) for _ in range(2))
    gamma, beta = (random.standard_normal(16).astype(dtype) for _ in range(2))
    total = x.astype(np.float64) + skip
    mean = total.mean(axis=-1, keepdims=True)
    inverse = 1.0 / np.sqrt(total.var(axis=-1, keepdims=True) + EPSILON)
    expected = [
        ((total - mean) * inverse * gamma + beta).astype(dtype),
        mean.astype(np.float32),
        inverse.astype(np.float32),
        total.astype(dtype),
    ]
    results = run_body(
        SKIP_LAYER_NORMALIZATION, opset, [x, skip, gamma, beta], expected, epsilon=EPSILON
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


def test_inlined_with_unnamed_statistics_is_one_norm_without_empty_inputs() -> None:
    """Unused statistics become omitted outputs of LayerNormalization; the bias is always there."""
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 24, "com.microsoft": 1]>
        g (float[B,S,8] a, float[B,S,8] b, float[8] w, float[8] v) => (float[B,S,8] y) {
            y, m, d, sum = com.microsoft.SkipLayerNormalization <epsilon = 0.1> (a, b, w, v)
        }"""
    )
    for value in model.graph[0].outputs[1:3]:
        value.name = ""
    function = skip_layer_normalization(24)
    model.functions[function.identifier()] = function
    common_passes.InlinePass()(model)
    common_passes.RemoveUnusedNodesPass()(model)
    add, norm = model.graph
    assert (add.op_type, norm.op_type) == ("Add", "LayerNormalization")
    assert len(norm.outputs) == 1
    assert [value.name for value in norm.inputs if value is not None] == ["sum", "w", "v"]
