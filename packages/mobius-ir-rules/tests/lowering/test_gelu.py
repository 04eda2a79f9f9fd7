"""Gelu to primitives and to com.microsoft: numbers of both forms against ONNX Runtime's Gelu."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from mobius_ir_rules.lowering.gelu import gelu_to_microsoft_rules, gelu_to_primitives_rules
from mobius_ir_rules.testing import RuleCase, RuleConformance, run_model

PRIMITIVES = RuleConformance(gelu_to_primitives_rules)
MICROSOFT = RuleConformance(gelu_to_microsoft_rules)
# Case C003: on [-4, 4] the two forms are 4.7e-4 apart, so 1e-6 tells them apart.
X = np.linspace(-4.0, 4.0, 801)
FORMS = {
    "": ("Erf", "com.microsoft::Gelu"),
    '<approximate = "none">': ("Erf", "com.microsoft::Gelu"),
    '<approximate = "tanh">': ("Tanh", "com.microsoft::FastGelu"),
}


def graph(attributes: str, dtype: str = "float") -> Callable[[], ir.Model]:
    text = f"""
        <ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>
        g ({dtype}[N] x) => ({dtype}[N] y) {{ [act] y = Gelu {attributes} (x) }}"""
    return lambda: ir.from_proto(onnx.parser.parse_model(text))


@pytest.mark.parametrize("form", FORMS)
def test_primitives(form: str) -> None:
    case = RuleCase(
        form,
        graph(form),
        after={"Gelu": 0, FORMS[form][0]: 1},
        inputs={"x": X.astype(np.float32)},
        tolerance=1e-6,
    )
    PRIMITIVES.check(case)


@pytest.mark.parametrize("form", FORMS)
def test_microsoft(form: str) -> None:
    case = RuleCase(
        form,
        graph(form),
        after={"Gelu": 0, FORMS[form][1]: 1},
        inputs={"x": X.astype(np.float32)},
        tolerance=1e-6,
    )
    MICROSOFT.check(case)


@pytest.mark.parametrize("form", FORMS)
def test_half_precision_is_finite_and_near_the_single_precision(form: str) -> None:
    """ONNX Runtime has no float16 kernel of Gelu on the CPU: float32 is the reference."""
    x = np.concatenate([X, [-6e4, -300.0, -60.0, 60.0, 300.0, 6e4]]).astype(np.float16)
    expected = run_model(graph(form)(), {"x": x.astype(np.float32)})["y"]
    model = graph(form, "float16")()
    assert PRIMITIVES.apply(model) == 1
    found = run_model(model, {"x": x})["y"]
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.astype(np.float32), expected, rtol=2e-3, atol=4e-3)


@pytest.mark.parametrize("conformance", [PRIMITIVES, MICROSOFT])
def test_another_form_is_refused(conformance: RuleConformance) -> None:
    reason = "Gelu (node 'act') has approximate = 'sigmoid'; 'none' or 'tanh' is needed."
    case = RuleCase(
        "other", graph('<approximate = "sigmoid">'), 0, (reason,), after={"Gelu": 1}, compare=False
    )
    conformance.check(case)


def test_an_unknown_type_is_refused_by_the_primitives_only() -> None:
    def build() -> ir.Model:
        model = graph("")()
        node = model.graph.node(0)
        copy = ir.node("Identity", [node.inputs[0]])
        copy.outputs[0].name = "copy"
        node.prepend(copy)
        node.replace_input_with(0, copy.outputs[0])
        node.outputs[0].name, node.outputs[0].type = "activated", None
        last = ir.node("Identity", [node.outputs[0]])
        last.outputs[0].name, last.outputs[0].type = "y", copy.inputs[0].type
        node.append(last)
        model.graph.outputs[0] = last.outputs[0]
        return model

    reason = (
        "The element type of the input of Gelu (node 'act') is not known; it is needed for the "
        "constants."
    )
    PRIMITIVES.check(RuleCase("untyped", build, 0, (reason,), dims={"N": 4}))
    MICROSOFT.check(RuleCase("untyped", build, after={"Gelu": 0}, dims={"N": 4}))
