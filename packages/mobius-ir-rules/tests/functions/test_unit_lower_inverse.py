"""The inverse of unit lower triangular matrices, of every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime
import pytest
from onnxscript import OpBuilder

from mobius_ir_rules.functions.body import make_function
from mobius_ir_rules.functions.unit_lower_inverse import joints, unit_lower_inverse
from mobius_ir_rules.passes import InlineFunctions

LARGEST = 32


@pytest.fixture(scope="module", name="session")
def _session() -> onnxruntime.InferenceSession:
    def body(op: OpBuilder, x: ir.Value) -> Any:
        return unit_lower_inverse(op, x, joints(op, op.Shape(x, start=-1), LARGEST))

    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 24, "test": 1]>
        g (float[B,H,N,N] x) => (float[B,H,N,N] y) { y = test.Inverse (x) }"""
    )
    function = make_function(("test", "Inverse"), ["x"], ["y"], [], body, 24)
    model.functions[function.identifier()] = function
    InlineFunctions()(model)
    return onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )


def _grams(size: int) -> npt.NDArray[np.float32]:
    """Products of keys of norm 1: apart from each other, nearly alike, and all the same."""
    random = np.random.default_rng(size)
    keys = random.standard_normal((3, 2, size, 8))
    keys[1] = keys[1, :, :1] + 1e-3 * keys[1]
    keys[2] = keys[2, :, :1]
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    return (keys @ keys.swapaxes(-1, -2)).astype(np.float32)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 32])
def test_inverse(session: onnxruntime.InferenceSession, size: int) -> None:
    x = _grams(size)  # what is not below the diagonal is to be left out
    (found,) = session.run(None, {"x": x})
    expected = np.linalg.inv(np.eye(size) + np.tril(x.astype(np.float64), -1))
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6)
    # It is triangular, and of one key repeated two numbers a row: not a digit is lost.
    np.testing.assert_array_equal(found, np.tril(found))
    np.testing.assert_allclose(found[2], expected[2], rtol=0, atol=5e-7)
