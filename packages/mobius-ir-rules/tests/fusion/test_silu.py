"""QuickGelu: gates of their own argument fuse with any constant factor; others stay."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import pytest

from mobius_ir_rules.fusion.silu import quick_gelu_rules
from mobius_ir_rules.testing import RuleCase, RuleConformance

DIMS = {"B": 2, "S": 3}
FUSED = {"com.microsoft::QuickGelu": 1}


def graph(body: str, dtype: str = "float", constant: str = "k = {1.702}") -> Callable[[], ir.Model]:
    text = f"""<ir_version: 10, opset_import: ["": 20]>
        g ({dtype}[B,S,16] x, {dtype}[B,S,16] u) => ({dtype}[B,S,16] y)
        <float {constant}> {{ {body} }}"""

    def build() -> ir.Model:
        model = ir.from_onnx_text(text)
        common_passes.ShapeInferencePass()(model)
        return model

    return build


QUICK = "a = Mul(x, k)  s = Sigmoid(a)  y = Mul(x, s)"
CASES = [
    RuleCase("SiLU", graph("s = Sigmoid(x)  y = Mul(x, s)"), dims=DIMS, after=FUSED, complete=True),
    RuleCase(
        "SiLU, exchanged",
        graph("s = Sigmoid(x)  y = Mul(s, x)"),
        dims=DIMS,
        after=FUSED,
        complete=True,
    ),
    RuleCase("QuickGelu", graph(QUICK), dims=DIMS, after=FUSED, complete=True),
    RuleCase(
        "QuickGelu, exchanged",
        graph("a = Mul(k, x)  s = Sigmoid(a)  y = Mul(s, x)"),
        dims=DIMS,
        after=FUSED,
        complete=True,
    ),
    RuleCase(
        "QuickGelu, divided",
        graph("a = Div(x, k)  s = Sigmoid(a)  y = Mul(s, x)", constant="k = {0.5}"),
        dims=DIMS,
        after=FUSED,
        complete=True,
    ),
    RuleCase(
        "negative factor",
        graph(QUICK, constant="k = {-0.7}"),
        dims=DIMS,
        after=FUSED,
        complete=True,
    ),
    RuleCase(
        "factor of rank 1",
        graph(QUICK, constant="[1] k = {1.7}"),
        dims=DIMS,
        after=FUSED,
        complete=True,
    ),
    RuleCase(
        "SwiGLU",
        graph("s = Sigmoid(x)  g = Mul(x, s)  y = Mul(g, u)"),
        dims=DIMS,
        after={**FUSED, "Mul": 1},
        complete=True,
    ),
    RuleCase(
        "sigmoid is used elsewhere",
        graph("s = Sigmoid(x)  g = Mul(x, s)  y = Mul(g, s)"),
        dims=DIMS,
        after={**FUSED, "Sigmoid": 1, "Mul": 1},
        complete=True,
    ),
    RuleCase("gate of another value", graph("s = Sigmoid(u)  y = Mul(x, s)"), 0, dims=DIMS),
    RuleCase("factor is no constant", graph(QUICK.replace("k", "u")), 0, dims=DIMS),
    RuleCase(
        "factor gives more axes",
        graph(QUICK, constant="[1,1,1,1] k = {1.7}"),
        0,
        reasons=(
            "A constant of Mul (node 'a') has rank 4; one of rank 0 is needed, or of at most the "
            "rank of its input, 3.",
        ),
        compare=False,
    ),
    RuleCase(
        "type is not known",
        lambda: ir.from_onnx_text(
            """<ir_version: 10, opset_import: ["": 20, "other": 1]> g (float[2,4] z) =>
            (float[2,4] y) { x = other.Do(z)  s = Sigmoid(x)  y = Mul(x, s) }"""
        ),
        0,
        reasons=(
            "The input of Sigmoid (node 's') has the type unknown; FLOAT, FLOAT16, BFLOAT16 or "
            "DOUBLE is needed.",
        ),
        compare=False,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: RuleCase) -> None:
    RuleConformance(quick_gelu_rules).check(case)


@pytest.mark.parametrize(("body", "alpha"), [("s = Sigmoid(x)  y = Mul(x, s)", 1.0)])
def test_alpha(body: str, alpha: float) -> None:
    """The schema's default is 1.702, so 1 must be written."""
    model = graph(body)()
    assert RuleConformance(quick_gelu_rules).apply(model) == 1
    assert model.graph[0].attributes["alpha"].as_float() == alpha
