"""SkipLayerNorm: what fuses, what is refused and why (shared proofs: see test_skip_norm)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import onnxscript.rewriter
import pytest

from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.fusion.skip_layer_norm import skip_layer_norm_rules
from mobius_ir_rules.testing import (
    RuleCase,
    RuleConformance,
    op_counts,
    random_inputs,
    run_model,
)

FUSED = "com.microsoft::SkipLayerNormalization"
ADD = "Add (node 'add')"
NORM = "LayerNormalization (node 'norm')"
DIMS = {"B": 2, "S": 3, "H": 16}


def graph(
    norm: str = "y = LayerNormalization(sum, gamma, beta)",
    hidden: str = "float[B,S,16]",
    gamma: str = "float[16]",
    beta: str = "float[16]",
    between: str = "",
    after: str = "",
    outputs: str = "",
) -> Callable[[], ir.Model]:
    """Return a builder of a residual Add with a norm, and further nodes around them."""
    text = f"""<ir_version: 10, opset_import: ["": 24]>
        g ({hidden} a, {hidden} b, {gamma} gamma, {beta} beta) => ({hidden} y{outputs}) {{
            [add] sum = Add(a, b)
            {between}
            [norm] {norm}
            {after}
        }}"""

    def build() -> ir.Model:
        model = ir.from_onnx_text(text)
        common_passes.ShapeInferencePass()(model)
        return model

    return build


def refused(name: str, build: Callable[[], ir.Model], reason: str) -> RuleCase:
    """Return a case that must stay as it is; not run, as some are not runnable at all."""
    return RuleCase(name, build, applications=0, reasons=(reason,), compare=False)


ONE = {FUSED: 1, "Add": 0, "LayerNormalization": 0}
Z = ", float[B,S,16] z"

CASES = [
    RuleCase("defaults", graph(), dims=DIMS, after=ONE),
    RuleCase(
        "attributes",
        graph(
            "y = LayerNormalization <axis = 2, epsilon = 0.1, stash_type = 1> (sum, gamma, beta)"
        ),
        dims=DIMS,
        after=ONE,
    ),
    RuleCase(
        "float16",
        graph(hidden="float16[B,S,16]", gamma="float16[16]", beta="float16[16]"),
        dims=DIMS,
        after=ONE,
    ),
    RuleCase(
        "no bias",
        graph("y = LayerNormalization(sum, gamma)"),
        dims=DIMS,
        after=ONE | {"Constant": 1},
    ),
    RuleCase(
        "no bias, bfloat16",
        graph("y = LayerNormalization(sum, gamma)", "bfloat16[B,S,16]", "bfloat16[16]"),
        compare=False,
        after=ONE | {"Constant": 1},
    ),
    RuleCase(
        "omitted bias",
        graph("y = LayerNormalization(sum, gamma, )"),
        dims=DIMS,
        after=ONE | {"Constant": 1},
    ),
    RuleCase(
        "symbolic hidden size",
        graph(hidden="float[B,S,H]", gamma="float[H]", beta="float[H]"),
        dims=DIMS,
        after=ONE,
    ),
    RuleCase("sum is a graph output", graph(outputs=", float[B,S,16] sum"), dims=DIMS, after=ONE),
    RuleCase(
        "sum is read before and after the norm",
        graph(between="t = Neg(sum)", after="z = Add(sum, t)", outputs=Z),
        dims=DIMS,
        after={FUSED: 1, "Add": 1},
    ),
    RuleCase(
        "second norm of the same sum stays",
        graph(after="z = LayerNormalization(sum, gamma, beta)", outputs=Z),
        dims=DIMS,
        after={FUSED: 1, "Add": 0, "LayerNormalization": 1},
    ),
    refused(
        "rank 2",
        graph(hidden="float[S,16]"),
        f"{ADD} adds [S,16] and [S,16]; two equal shapes of rank 3 are needed.",
    ),
    refused(
        "scale of rank 3",
        graph(gamma="float[1,1,16]"),
        f"The scale of {NORM} has shape [1,1,16]; [16] is needed.",
    ),
    refused(
        "bias of size 1",
        graph(beta="float[1]"),
        f"The bias of {NORM} has shape [1]; [16] is needed.",
    ),
    refused(
        "no bias and a symbolic size",
        graph("y = LayerNormalization(sum, gamma)", hidden="float[B,S,H]", gamma="float[H]"),
        f"{NORM} has no bias and a scale of shape [H]; the size must be known to make a bias of "
        "zeros.",
    ),
    refused(
        "axis",
        graph("y = LayerNormalization <axis = 1> (sum, gamma)", gamma="float[S,16]"),
        f"{NORM} has axis=1 on rank 3; the last axis alone is needed.",
    ),
    refused(
        "stash type",
        graph("y = LayerNormalization <stash_type = 11> (sum, gamma, beta)"),
        f"{NORM} has stash_type=11; the fused kernels compute in float32, stash_type=1 is needed.",
    ),
    refused(
        "statistics are used",
        graph("y, z = LayerNormalization(sum, gamma, beta)", outputs=", float[B,S,1] z"),
        f"The statistics 'z' of {NORM} are used; the fused kernels of some execution providers "
        "make none.",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: RuleCase) -> None:
    """Fused exactly where the kernel computes the same; every refusal has its reason."""
    RuleConformance(skip_layer_norm_rules).check(case)


def test_epsilon_is_carried() -> None:
    """C091: the norm's own epsilon, 1e-5 where it has none; the fused default is 1e-12."""
    for attributes, expected in (("", 1e-5), ("<epsilon = 0.25>", 0.25)):
        model = graph(f"y = LayerNormalization {attributes} (sum, gamma, beta)")()
        onnxscript.rewriter.rewrite(model, skip_layer_norm_rules())
        (node,) = model.graph
        assert node.attributes.get_float("epsilon") == pytest.approx(expected)


@pytest.mark.parametrize("bias", [", beta", ""])
def test_fused_and_inlined_again_is_the_graph_before(bias: str) -> None:
    """C010: bit-equal, because the body holds the two operators."""
    model = graph(f"y = LayerNormalization(sum, gamma{bias})")()
    inputs = random_inputs(model, DIMS)
    before = run_model(model, inputs)
    onnxscript.rewriter.rewrite(model, skip_layer_norm_rules())
    assert AttachFunctions()(model).refusals == ()
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    common_passes.InlinePass()(model)
    common_passes.RemoveUnusedNodesPass()(model)
    assert (op_counts(model)["Add"], op_counts(model)["LayerNormalization"]) == (1, 1)
    np.testing.assert_array_equal(run_model(model, inputs)["y"], before["y"])


def test_body_of_the_fused_operator_stays() -> None:
    """C095: the rule does not rewrite the body into a call of itself."""
    model = graph()()
    onnxscript.rewriter.rewrite(model, skip_layer_norm_rules())
    AttachFunctions()(model)
    onnxscript.rewriter.rewrite(model, skip_layer_norm_rules())
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["Add", "LayerNormalization"]
