"""SkipBias: the bias of a projection goes into the fused norm behind it."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import onnxscript.rewriter
import pytest

from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.fusion.skip_bias import skip_bias_rules
from mobius_ir_rules.fusion.skip_layer_norm import skip_layer_norm_rules
from mobius_ir_rules.testing import RuleCase, RuleConformance

DIMS = {"B": 2, "S": 3}
LAYER = "com.microsoft.SkipLayerNormalization <epsilon = 0.1>"
RMS = "com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.1>"
ADD = "Add (node 'add')"
NORM = "com.microsoft::SkipLayerNormalization (node 'norm')"


def graph(
    norm: str = f"y, m, d, sum = {LAYER}(t, b, w, v)",
    add: str = "Add(x, bias)",
    bias: str = "float[16]",
    x: str = "float[B,S,16]",
    t: str = "float[B,S,16]",
    outputs: str = ", float[B,S,16] sum",
) -> Callable[[], ir.Model]:
    """Return a builder of a bias added before a fused residual norm."""

    def build() -> ir.Model:
        model = ir.from_onnx_text(
            f"""<ir_version: 10, opset_import: ["": 24, "com.microsoft": 1]>
            g ({x} x, {bias} bias, float[B,S,16] b, float[16] w, float[16] v)
            => (float[B,S,16] y{outputs}) {"" if " t" in outputs else f"<{t} t>"} {{
                [add] t = {add}
                [norm] {norm}
            }}"""
        )
        common_passes.ShapeInferencePass()(model)
        return model

    return build


def refused(name: str, build: Callable[[], ir.Model], *reasons: str, run: bool = True) -> RuleCase:
    """Return a case that must stay as it is."""
    return RuleCase(name, build, applications=0, reasons=reasons, dims=DIMS, compare=run)


CASES = [
    RuleCase("layer norm", graph(), dims=DIMS, after={"Add": 0}),
    RuleCase("bias first", graph(add="Add(bias, x)"), dims=DIMS, after={"Add": 0}),
    RuleCase(
        "second input", graph(f"y, m, d, sum = {LAYER}(b, t, w, v)"), dims=DIMS, after={"Add": 0}
    ),
    RuleCase(
        "without beta", graph(f"y, m, d, sum = {LAYER}(t, b, w)"), dims=DIMS, after={"Add": 0}
    ),
    RuleCase("rms norm", graph(f"y, m, d, sum = {RMS}(t, b, w)"), dims=DIMS, after={"Add": 0}),
    refused("residual", graph(bias="float[B,S,16]")),
    refused("it has a bias", graph(f"y, m, d, sum = {LAYER}(t, b, w, v, bias)")),
    refused("one output", graph(f"y = {LAYER}(t, b, w, v)", outputs="")),
    refused(
        "broadcast bias",
        graph(bias="float[1]"),
        f"{ADD} adds a bias of shape [1]; the shape of the scale of {NORM}, [16], is needed.",
    ),
    refused(
        "unknown sizes",
        graph(x="float[B,?,16]", t="float[B,?,16]"),
        f"{ADD} adds a bias to shape [B,None,16]; all sizes must be known, and those of the sum.",
        run=False,
    ),
    refused(
        "the sum leaves the graph",
        graph(outputs=", float[B,S,16] sum, float[B,S,16] t"),
        f"The sum of {ADD} is used elsewhere; {NORM} must be its only use.",
    ),
    refused(
        "statistics are used",
        graph(outputs=", float[B,S,1] m"),
        f"The statistics 'm' of {NORM} are used; a norm that makes none is needed.",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: RuleCase) -> None:
    """Fused exactly where the kernel computes the same; every refusal has its reason."""
    RuleConformance(skip_bias_rules).check(case)


def test_behind_skip_layer_norm() -> None:
    """Both factories in one run: first the residual, then the bias; the body then fits not."""
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 24]>
        g (float[B,S,16] x, float[16] bias, float[B,S,16] r, float[16] w, float[16] v)
        => (float[B,S,16] y) {
            t = Add(x, bias)
            sum = Add(r, t)
            y = LayerNormalization(sum, w, v)
        }"""
    )
    common_passes.ShapeInferencePass()(model)
    onnxscript.rewriter.rewrite(model, skip_layer_norm_rules())
    onnxscript.rewriter.rewrite(model, skip_bias_rules())
    (node,) = model.graph
    names = [value.name for value in node.inputs if value is not None]
    assert names == ["r", "x", "w", "v", "bias"]
    (refusal,) = AttachFunctions()(model).refusals
    assert refusal.reason.endswith(
        "has 5 inputs; the body needs 4 (input, skip, gamma, beta), none omitted."
    )
