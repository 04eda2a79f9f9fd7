"""SkipNorm: what fuses, what is refused and why, and where the fused node stands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import onnxscript.rewriter
import pytest

from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.fusion.skip_norm import skip_norm_rules
from mobius_ir_rules.testing import (
    RuleCase,
    RuleConformance,
    op_counts,
    random_inputs,
    run_model,
)

FUSED = "com.microsoft::SkipSimplifiedLayerNormalization"
ADD = "Add (node 'add')"
NORM = "RMSNormalization (node 'norm')"
SHAPES = "two equal shapes of rank 2 or 3 are needed"


def graph(
    a: str = "float[B,S,16]",
    b: str = "float[B,S,16]",
    gamma: str = "float[16]",
    y: str = "float[B,S,16]",
    attributes: str = "",
    before: str = "",
    between: str = "",
    after: str = "",
    outputs: str = "",
    scale: str = "gamma",
) -> Callable[[], ir.Model]:
    """Return a builder of a residual Add with a norm, and further nodes around them."""
    text = f"""<ir_version: 10, opset_import: ["": 24]>
        g ({a} a, {b} b, {gamma} gamma) => ({y} y{outputs}) {{
            {before}
            [add] sum = Add(a, b)
            {between}
            [norm] y = RMSNormalization {attributes} (sum, {scale})
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


DIMS = {"B": 2, "S": 3, "T": 5}
ONE = {FUSED: 1, "Add": 0, "RMSNormalization": 0}

CASES = [
    RuleCase("defaults", graph(), dims=DIMS, after=ONE),
    RuleCase("epsilon", graph(attributes="<epsilon = 0.1, axis = 2>"), dims=DIMS, after=ONE),
    RuleCase("rank 2", graph("float[T,16]", "float[T,16]", y="float[T,16]"), dims=DIMS, after=ONE),
    RuleCase(
        "float16",
        graph("float16[B,S,16]", "float16[B,S,16]", "float16[16]", "float16[B,S,16]"),
        dims=DIMS,
        after=ONE,
    ),
    RuleCase(
        "sum is a graph output",
        graph(outputs=", float[B,S,16] sum"),
        dims=DIMS,
        after=ONE,
    ),
    RuleCase(
        "sum is read later",
        graph(after="z = Add(sum, y)", outputs=", float[B,S,16] z"),
        dims=DIMS,
        after={FUSED: 1, "Add": 1},
    ),
    RuleCase(
        "sum is read before the norm",
        graph(between="z = Neg(sum)", outputs=", float[B,S,16] z"),
        dims=DIMS,
        after=ONE,
    ),
    RuleCase(
        "second norm of the same sum stays",
        graph(after="z = RMSNormalization(sum, gamma)", outputs=", float[B,S,16] z"),
        dims=DIMS,
        after={FUSED: 1, "Add": 0, "RMSNormalization": 1},
    ),
    RuleCase(
        "offset scale",
        graph(
            before="one = Constant <value_float = 1.0>()\n offset = Add(gamma, one)", scale="offset"
        ),
        dims=DIMS,
        after={FUSED: 1, "Add": 1},
    ),
    RuleCase(
        "no norm",
        lambda: ir.from_onnx_text(
            """<ir_version: 10, opset_import: ["": 24]>
            g (float[B,16] a, float[B,16] b) => (float[B,16] y) { y = Add(a, b) }"""
        ),
        applications=0,
        dims=DIMS,
    ),
    RuleCase(
        "sum is the scale",
        lambda: ir.from_onnx_text(
            """<ir_version: 10, opset_import: ["": 24]>
            g (float[16] a, float[16] b, float[B,16] x) => (float[B,16] y) <float[16] sum> {
                sum = Add(a, b)
                y = RMSNormalization(x, sum)
            }"""
        ),
        applications=0,
        dims=DIMS,
    ),
    # C089: a bias, broadcasts, unknown shapes.
    refused("bias", graph(b="float[16]"), f"{ADD} adds [B,S,16] and [16]; {SHAPES}."),
    refused(
        "broadcast batch",
        graph(b="float[1,S,16]"),
        f"{ADD} adds [B,S,16] and [1,S,16]; {SHAPES}.",
    ),
    refused("broadcast rank", graph(b="float[S,16]"), f"{ADD} adds [B,S,16] and [S,16]; {SHAPES}."),
    refused(
        "another symbol",
        graph(b="float[B,T,16]"),
        f"{ADD} adds [B,S,16] and [B,T,16]; {SHAPES}.",
    ),
    refused(
        "unknown dimension",
        graph("float[B,?,16]", "float[B,?,16]"),
        f"{ADD} adds [B,None,16] and [B,None,16]; {SHAPES}.",
    ),
    refused(
        "unknown rank", graph(b="float[]"), f"An input of {ADD} has an unknown shape; {SHAPES}."
    ),
    refused(
        "rank 4",
        graph("float[B,S,2,16]", "float[B,S,2,16]"),
        f"{ADD} adds [B,S,2,16] and [B,S,2,16]; {SHAPES}.",
    ),
    refused(
        "scale of rank 3",
        graph(gamma="float[1,1,16]"),
        f"The scale of {NORM} has shape [1,1,16]; [16] is needed.",
    ),
    refused(
        "scale of size 1",
        graph(gamma="float[1]"),
        f"The scale of {NORM} has shape [1]; [16] is needed.",
    ),
    refused(
        "scale of unknown shape",
        graph(gamma="float[]"),
        f"The scale of {NORM} is the graph input 'gamma' with an unknown shape; [16] is needed.",
    ),
    refused(
        "scale of another type",
        graph("float16[B,S,16]", "float16[B,S,16]"),
        f"The scale of {NORM} has type FLOAT; the type of the Add's inputs, FLOAT16, is needed.",
    ),
    refused(
        "scale made later",
        graph(between="[late] late = Mul(gamma, gamma)", scale="late"),
        f"The scale of {NORM} is produced by Mul (node 'late'), after {ADD}; it must exist "
        "where the sum is made.",
    ),
    refused(
        "double",
        graph("double[B,S,16]", "double[B,S,16]", "double[16]", "double[B,S,16]"),
        f"An input of {ADD} has type DOUBLE; FLOAT, FLOAT16 or BFLOAT16 is needed to fuse {NORM}.",
    ),
    refused(
        "axis",
        graph(gamma="float[S,16]", attributes="<axis = 1>"),
        f"{NORM} has axis=1 on rank 3; the last axis alone is needed.",
    ),
    # C091
    refused(
        "stash type",
        graph(attributes="<stash_type = 11>"),
        f"{NORM} has stash_type=11; the fused kernels compute in float32, stash_type=1 is needed.",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: RuleCase) -> None:
    """Fused exactly where the kernel computes the same; every refusal has its reason."""
    RuleConformance(skip_norm_rules).check(case)


def _decoder(layers: int) -> ir.Model:
    """Return pre-norm layers with stand-ins for attention and MLP, the last norm behind them."""
    nodes, weights = [], ["embedded"]
    previous = "x"
    for index in range(2 * layers):
        nodes += [f"n{index} = RMSNormalization(r{index}, w{index})"] if index else []
        source = f"n{index}" if index else "first"
        nodes += [f"b{index} = Tanh({source})", f"r{index + 1} = Add({previous}, b{index})"]
        previous = f"r{index + 1}"
        weights.append(f"w{index + 1}")
    body = "\n".join(nodes)
    inputs = ", ".join(f"float[16] {name}" for name in weights)
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 24]>
        g (float[B,S,16] x, {inputs}) => (float[B,S,16] y) {{
            first = RMSNormalization(x, embedded)
            {body}
            y = RMSNormalization({previous}, w{2 * layers})
        }}"""
    )
    common_passes.ShapeInferencePass()(model)
    return model


def test_two_norms_a_layer_within_and_across_layers() -> None:
    """All but the first norm of a pre-norm decoder follow a residual Add."""
    model = _decoder(3)
    onnxscript.rewriter.rewrite(model, skip_norm_rules())
    counts = op_counts(model)
    assert (counts[FUSED], counts["RMSNormalization"], counts["Add"]) == (6, 1, 0)


def test_epsilon_is_carried() -> None:
    """C091: the norm's own epsilon, 1e-5 where it has none; the fused default is 1e-12."""
    for attributes, expected in (("", 1e-5), ("<epsilon = 0.25>", 0.25)):
        model = graph(attributes=attributes)()
        onnxscript.rewriter.rewrite(model, skip_norm_rules())
        (node,) = model.graph
        assert node.attributes.get_float("epsilon") == pytest.approx(expected)


def test_order_is_topological_where_the_sum_is_read_before_the_norm() -> None:
    """The fused node takes the place of the Add, not of the norm."""
    model = graph(between="z = Neg(sum)", outputs=", float[B,S,16] z")()
    onnxscript.rewriter.rewrite(model, skip_norm_rules())
    assert [node.op_type for node in model.graph] == ["SkipSimplifiedLayerNormalization", "Neg"]
    onnx.checker.check_model(ir.to_proto(model))


def test_sum_keeps_its_name_and_shape() -> None:
    """C010: the sum is output 3, the statistics are outputs 1 and 2."""
    model = graph(outputs=", float[B,S,16] sum")()
    onnxscript.rewriter.rewrite(model, skip_norm_rules())
    (node,) = model.graph
    assert len(node.inputs) == 3
    assert [value.name for value in model.graph.outputs] == ["y", "sum"]
    assert node.outputs[0] is model.graph.outputs[0]
    assert node.outputs[3] is model.graph.outputs[1]
    assert str(node.outputs[3].shape) == "[B,S,16]"


@pytest.mark.parametrize("outputs", ["", ", float[B,S,16] sum"])
def test_fused_and_inlined_again_is_the_graph_before(outputs: str) -> None:
    """C010: bit-equal, because the body holds the two operators."""
    model = graph(outputs=outputs)()
    inputs = random_inputs(model, DIMS)
    before = run_model(model, inputs)
    onnxscript.rewriter.rewrite(model, skip_norm_rules())
    assert AttachFunctions()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    common_passes.InlinePass()(model)
    common_passes.RemoveUnusedNodesPass()(model)
    assert op_counts(model) == {"Add": 1, "RMSNormalization": 1}
    after = run_model(model, inputs)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)


def test_body_of_the_fused_operator_stays() -> None:
    """C095: the rule does not rewrite the body into a call of itself."""
    model = graph()()
    onnxscript.rewriter.rewrite(model, skip_norm_rules())
    AttachFunctions()(model)
    onnxscript.rewriter.rewrite(model, skip_norm_rules())
    (function,) = model.functions.values()
    assert {"Add", "RMSNormalization"} <= {node.op_type for node in function}
