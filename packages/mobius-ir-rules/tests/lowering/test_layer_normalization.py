"""LayerNormalization to primitives: numbers against ONNX Runtime's kernel, large rows, refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from mobius_ir_rules.lowering.layer_normalization import layer_normalization_to_primitives_rules
from mobius_ir_rules.testing import RuleCase, RuleConformance, op_counts, run_model

CONFORMANCE = RuleConformance(layer_normalization_to_primitives_rules)
DIMS = {"B": 2, "S": 3}
NODE = "LayerNormalization (node 'norm')"


def graph(
    attributes: str = "",
    dtype: str = "float",
    shape: str = "[B, S, 4, 16]",
    scale: str = "[16]",
    bias: bool = True,
    outputs: str = "y",
    opset: int = 17,
) -> Callable[[], ir.Model]:
    extra = "".join(f", float[P, Q, R, U] {name}" for name in outputs.split(", ")[1:] if name)
    text = f"""
        <ir_version: 10, opset_import: ["" : {opset}]>
        g ({dtype}{shape} x, {dtype}{scale} w{f", {dtype}{scale} b" if bias else ""})
          => ({dtype}{shape} y{extra}) {{
            [norm] {outputs} = LayerNormalization {attributes} (x, w{", b" if bias else ""}) }}"""
    return lambda: ir.from_proto(onnx.parser.parse_model(text))


CASES = {
    "defaults": graph(),
    "opset 24": graph(opset=24),
    "no bias": graph(bias=False),
    "epsilon": graph("<epsilon = 0.25>"),
    "last axis by its number": graph("<axis = 3, stash_type = 1>"),
    "two axes": graph("<axis = -2>", scale="[4, 16]"),
    "two axes by their number": graph("<axis = 2>", scale="[4, 16]"),
    "statistics": graph(outputs="y, mean, deviation"),
    "deviation only": graph(outputs="y, , deviation"),
    "statistics of two axes": graph("<axis = -2>", scale="[4, 16]", outputs="y, mean, deviation"),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str) -> None:
    after = {"LayerNormalization": 0, "ReduceSum": 2, "Reciprocal": 1, "Cast": 0}
    CONFORMANCE.check(RuleCase(name, CASES[name], after=after, dims=DIMS))


def test_half_precision() -> None:
    after = {"LayerNormalization": 0, "Cast": 2}
    CONFORMANCE.check(RuleCase("f16", graph(dtype="float16"), after=after, dims=DIMS))


@pytest.mark.parametrize("magnitude", [900.0, 8000.0, 6e4])
def test_rows_whose_square_overflows_half_precision(magnitude: float) -> None:
    """Case C121: finite, not zero, and equal to float32."""
    x = np.linspace(-magnitude, magnitude, 3 * 64).reshape(1, 3, 64).astype(np.float16)
    w, b = np.linspace(0.5, 1.5, 64), np.linspace(-1.0, 1.0, 64)
    model = graph(dtype="float16", shape="[B, S, 64]", scale="[64]")()
    assert CONFORMANCE.apply(model) == 1
    inputs = {"x": x, "w": w.astype(np.float16), "b": b.astype(np.float16)}
    found = run_model(model, inputs)["y"].astype(np.float32)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True)) * w + b
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=3e-3)


def test_a_mean_far_from_zero() -> None:
    """The variance is that of the centred rows: nothing cancels."""
    random = np.random.default_rng(0)
    x = (1000.0 + random.standard_normal((2, 3, 4, 16))).astype(np.float32)
    CONFORMANCE.check(RuleCase("mean", CASES["defaults"], inputs={"x": x}, tolerance=1e-3))


def test_new_values_are_declared() -> None:
    model = graph(dtype="float16", outputs="y, mean, deviation")()
    assert CONFORMANCE.apply(model) == 1
    for node in model.graph:
        assert node.outputs[0].dtype is not None
        assert node.outputs[0].shape is not None
    root = next(node for node in model.graph if node.op_type == "Sqrt")
    assert root.outputs[0].shape == ir.Shape(["B", "S", 4, 1])
    assert [value.dtype for value in model.graph.outputs] == [
        ir.DataType.FLOAT16,
        ir.DataType.FLOAT,
        ir.DataType.FLOAT,
    ]
    assert op_counts(model)["Cast"] == 2


REFUSALS = {
    f"{NODE} normalizes axes of the sizes unknown of the graph input 'x'; known sizes are "
    "needed.": graph(shape="[B, S, H]", scale="[H]"),
    f"{NODE} normalizes axes of the sizes unknown, 16 of the graph input 'x'; known sizes are "
    "needed.": graph("<axis = 1>", shape="[B, S, 16]", scale="[S, 16]"),
    f"{NODE} has axis = 1 and the rank of the graph input 'x' is not known; it is needed.": graph(
        "<axis = 1>", shape="[]"
    ),
    f"{NODE} has stash_type = 7; a floating-point type is needed.": graph("<stash_type = 7>"),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals(reason: str) -> None:
    case = RuleCase(
        reason, REFUSALS[reason], 0, (reason,), after={"LayerNormalization": 1}, compare=False
    )
    CONFORMANCE.check(case)
