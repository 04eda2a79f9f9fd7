"""RMSNormalization to primitives: numbers against ONNX Runtime's kernel, large rows, refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from mobius_ir_rules.lowering.rms_normalization import rms_normalization_to_primitives_rules
from mobius_ir_rules.testing import RuleCase, RuleConformance, op_counts, run_model

CONFORMANCE = RuleConformance(rms_normalization_to_primitives_rules)
DIMS = {"B": 2, "S": 3}
NODE = "RMSNormalization (node 'norm')"


def graph(
    attributes: str = "",
    dtype: str = "float",
    shape: str = "[B, S, 4, 16]",
    scale: str = "[16]",
    scale_dtype: str | None = None,
) -> Callable[[], ir.Model]:
    text = f"""
        <ir_version: 10, opset_import: ["" : 24]>
        g ({dtype}{shape} x, {scale_dtype or dtype}{scale} w)
          => ({scale_dtype or dtype}{shape} y) {{
            [norm] y = RMSNormalization {attributes} (x, w) }}"""
    return lambda: ir.from_proto(onnx.parser.parse_model(text))


CASES = {
    "defaults": graph(),
    "epsilon": graph("<epsilon = 0.25>"),
    "last axis by its number": graph("<axis = 3, stash_type = 1>"),
    "two axes": graph("<axis = -2>", scale="[4, 16]"),
    "two axes by their number": graph("<axis = 2>", scale="[4, 16]"),
    "a scale that broadcasts": graph("<axis = -2>", scale="[16]"),
    "double": graph(dtype="double"),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str) -> None:
    after = {"RMSNormalization": 0, "ReduceMean": 1, "Sqrt": 1, "Div": 1, "Mul": 2, "Cast": 0}
    CONFORMANCE.check(RuleCase(name, CASES[name], after=after, dims=DIMS))


def test_half_precision() -> None:
    after = {"RMSNormalization": 0, "Cast": 2}
    CONFORMANCE.check(RuleCase("f16", graph(dtype="float16"), after=after, dims=DIMS))


@pytest.mark.parametrize("magnitude", [900.0, 8000.0, 6e4])
def test_rows_whose_square_overflows_half_precision(magnitude: float) -> None:
    """Case C027: finite, not zero, and equal to float32."""
    x = np.linspace(-magnitude, magnitude, 3 * 64).reshape(1, 3, 64).astype(np.float16)
    w = np.linspace(0.5, 1.5, 64).astype(np.float16)
    model = graph(dtype="float16", shape="[B, S, 64]", scale="[64]")()
    assert CONFORMANCE.apply(model) == 1
    found = run_model(model, {"x": x, "w": w})["y"].astype(np.float32)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True)) * w
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-3)


def test_bfloat16_takes_its_statistics_in_float32() -> None:
    model = graph(dtype="bfloat16")()
    assert CONFORMANCE.apply(model) == 1
    wide = [node for node in model.graph if node.op_type in ("ReduceMean", "Sqrt", "Div")]
    assert {node.outputs[0].dtype for node in wide} == {ir.DataType.FLOAT}
    assert model.graph.outputs[0].dtype == ir.DataType.BFLOAT16


def test_stash_type_is_the_type_of_the_statistics() -> None:
    model = graph("<stash_type = 10>", dtype="float16")()
    assert CONFORMANCE.apply(model) == 1
    assert op_counts(model)["Cast"] == 0
    model = graph("<stash_type = 11>")()
    assert CONFORMANCE.apply(model) == 1
    reduce = next(node for node in model.graph if node.op_type == "ReduceMean")
    assert reduce.outputs[0].dtype == ir.DataType.DOUBLE


def test_the_result_has_the_type_of_the_scale() -> None:
    model = graph(dtype="float16", shape="[2, 16]", scale_dtype="float")()
    assert CONFORMANCE.apply(model) == 1
    random = np.random.default_rng(0)
    x, w = random.standard_normal((2, 16)).astype(np.float16), random.random(16, np.float32)
    found = run_model(model, {"x": x, "w": w})["y"]
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * w
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_new_values_are_declared() -> None:
    model = graph(dtype="float16")()
    assert CONFORMANCE.apply(model) == 1
    for node in model.graph:
        assert node.outputs[0].dtype is not None
        assert node.outputs[0].shape is not None
    root = next(node for node in model.graph if node.op_type == "Sqrt")
    assert root.outputs[0].shape == ir.Shape(["B", "S", 4, 1])


REFUSALS = {
    f"{NODE} has axis = 1 and the rank of the graph input 'x' is not known; it is needed.": (
        graph("<axis = 1>", shape="[]"),
    ),
    f"{NODE} has an axis that the graph input 'x', of rank 2, has not; one of its axes is "
    "needed.": (graph("<axis = 2>", shape="[B, 16]"),),
    f"{NODE} has stash_type = 7; a floating-point type is needed.": (graph("<stash_type = 7>"),),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals(reason: str) -> None:
    (build,) = REFUSALS[reason]
    case = RuleCase(reason, build, 0, (reason,), after={"RMSNormalization": 1}, compare=False)
    CONFORMANCE.check(case)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        (0, f"The element type of the input of {NODE} is not known; it is needed."),
        (
            1,
            f"The element type of the scale of {NODE} is not known; it is needed, because it is "
            "that of the result.",
        ),
    ],
)
def test_unknown_types_are_refused(index: int, reason: str) -> None:
    def build() -> ir.Model:
        model = graph()()
        model.graph.inputs[index].type = None
        return model

    case = RuleCase(reason, build, 0, (reason,), compare=False, nested=False)
    CONFORMANCE.check(case)
