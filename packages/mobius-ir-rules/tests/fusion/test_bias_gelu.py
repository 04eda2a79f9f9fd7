"""BiasGelu: the exact form becomes BiasGelu, the tanh form FastGelu, and residuals stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import onnxscript.rewriter
import pytest

from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.fusion.bias_gelu import bias_gelu_rules
from mobius_ir_rules.testing import RuleCase, RuleConformance, run_model

DIMS = {"B": 2, "S": 3, "H": 16}
EXACT = {"com.microsoft::BiasGelu": 1, "com.microsoft::FastGelu": 0, "Add": 0}
TANH = {"com.microsoft::BiasGelu": 0, "com.microsoft::FastGelu": 1, "Add": 0}
ADD = "Add (node 'add')"
GELU = "Gelu (node 'gelu')"


def graph(
    gelu: str = "Gelu(s)",
    x: str = "float[B,S,16]",
    bias: str = "float[16]",
    add: str = "Add(x, bias)",
    outputs: str = "",
) -> Callable[[], ir.Model]:
    """Return a builder of an Add and a GELU of the sum."""
    result = x if x != "float[]" else "float[B,S,16]"

    def build() -> ir.Model:
        model = ir.from_onnx_text(
            f"""<ir_version: 10, opset_import: ["": 24, "com.microsoft": 1]>
            g ({x} x, {bias} bias) => ({result} y{outputs}) {{
                [add] s = {add}
                [gelu] y = {gelu}
            }}"""
        )
        common_passes.ShapeInferencePass()(model)
        return model

    return build


def refused(name: str, build: Callable[[], ir.Model], *reasons: str) -> RuleCase:
    """Return a case that must stay as it is."""
    return RuleCase(name, build, applications=0, reasons=reasons, compare=False)


CASES = [
    RuleCase("exact", graph(), dims=DIMS, after=EXACT, complete=True),
    RuleCase(
        "exact, named",
        graph('Gelu <approximate = "none"> (s)'),
        dims=DIMS,
        after=EXACT,
        complete=True,
    ),
    RuleCase(
        "tanh", graph('Gelu <approximate = "tanh"> (s)'), dims=DIMS, after=TANH, complete=True
    ),
    RuleCase("bias first", graph(add="Add(bias, x)"), dims=DIMS, after=EXACT, complete=True),
    RuleCase("rank 2", graph(x="float[B,16]"), dims=DIMS, after=EXACT, complete=True),
    RuleCase(
        "symbolic size",
        graph(x="float[B,H]", bias="float[H]"),
        dims=DIMS,
        after=EXACT,
        complete=True,
    ),
    RuleCase(
        "Gelu of ONNX Runtime",
        graph("com.microsoft.Gelu(s)"),
        dims=DIMS,
        after=EXACT,
        complete=True,
    ),
    RuleCase(
        "FastGelu without bias",
        graph("com.microsoft.FastGelu(s)"),
        dims=DIMS,
        after=TANH,
        complete=True,
    ),
    # The CPU provider has neither kernel in float16.
    RuleCase("float16", graph(x="float16[B,S,16]", bias="float16[16]"), compare=False, after=EXACT),
    RuleCase(
        "two GELUs in turn",
        lambda: ir.from_onnx_text(
            """<ir_version: 10, opset_import: ["": 24]>
            g (float[B,16] x, float[16] b) => (float[B,16] y)
            <float[B,16] s, float[B,16] t, float[B,16] u> {
                s = Add(x, b)  t = Gelu(s)  u = Add(b, t)  y = Gelu <approximate = "tanh"> (u)
            }"""
        ),
        applications=2,
        dims=DIMS,
        after={"com.microsoft::BiasGelu": 1, "com.microsoft::FastGelu": 1, "Add": 0},
    ),
    # C090: the sum of two activations is no bias.
    RuleCase("residual", graph(bias="float[B,S,16]"), applications=0, dims=DIMS),
    RuleCase("two vectors", graph(x="float[16]"), applications=0, dims=DIMS),
    RuleCase("no Add", graph("Gelu(x)"), applications=0, dims=DIMS),
    RuleCase(
        "FastGelu with a bias", graph("com.microsoft.FastGelu(s, bias)"), applications=0, dims=DIMS
    ),
    refused(
        "broadcast bias",
        graph(bias="float[1]"),
        f"{ADD} adds a bias of shape [1] to shape [B,S,16]; [..., 1] is needed.",
    ),
    refused(
        "unknown shape",
        graph(x="float[]"),
        f"{ADD} adds a bias of shape [16] to an unknown shape; [..., 16] is needed.",
    ),
    refused(
        "unknown sizes",
        graph(x="float[B,?]", bias="float[?]"),
        f"{ADD} adds a bias of shape [None] to shape [B,None]; [..., None] is needed.",
    ),
    refused(
        "the sum leaves the graph",
        graph(outputs=", float[B,S,16] s"),
        f"The sum of {ADD} is used elsewhere; {GELU} must be its only use.",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: RuleCase) -> None:
    """Fused exactly where the kernels compute the same; every refusal has its reason."""
    RuleConformance(bias_gelu_rules).check(case)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_forms_are_not_swapped(approximate: str) -> None:
    """C003: a swap shows as 4.7e-4 on [-4, 4], so the tolerance is 1e-6."""
    inputs = {
        "x": np.linspace(-4.0, 4.0, 96, dtype=np.float32).reshape(2, 3, 16),
        "bias": np.linspace(-0.1, 0.1, 16, dtype=np.float32),
    }
    model = graph(f'Gelu <approximate = "{approximate}"> (s)')()
    before = run_model(model, inputs)["y"]
    onnxscript.rewriter.rewrite(model, bias_gelu_rules())
    assert AttachFunctions()(model).modified
    assert np.max(np.abs(run_model(model, inputs)["y"] - before)) < 1e-6
    common_passes.InlinePass()(model)
    assert [node.op_type for node in model.graph] == ["Add", "Gelu"]
    np.testing.assert_array_equal(run_model(model, inputs)["y"], before)


def test_bodies_of_the_fused_operators_stay() -> None:
    """C095: the rule does not rewrite a body into a call of itself."""
    model = graph()()
    onnxscript.rewriter.rewrite(model, bias_gelu_rules())
    AttachFunctions()(model)
    onnxscript.rewriter.rewrite(model, bias_gelu_rules())
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["Add", "Gelu"]


@pytest.mark.parametrize(
    ("operators", "exact", "tanh"),
    [
        (("BiasGelu",), EXACT, None),
        (("FastGelu",), None, TANH),
        ((), None, None),
    ],
)
def test_only_the_operators_that_the_target_runs(
    operators: tuple[str, ...], exact: dict[str, int] | None, tanh: dict[str, int] | None
) -> None:
    conformance = RuleConformance(lambda: bias_gelu_rules(operators))
    for gelu, after in (("Gelu(s)", exact), ('Gelu <approximate = "tanh"> (s)', tanh)):
        conformance.check(
            RuleCase(
                gelu,
                graph(gelu),
                applications=int(after is not None),
                dims=DIMS,
                after=after or {"Gelu": 1, "Add": 1},
            )
        )
