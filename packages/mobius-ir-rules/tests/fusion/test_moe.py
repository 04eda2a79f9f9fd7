"""MoEFusion: routings that MoE computes itself, all others, rows in halves, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import onnxscript.rewriter
import pytest

import mobius_ir_rules
from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.fusion.moe import moe_rules
from mobius_ir_rules.passes import FoldWeights, InferShapes, RemoveUnused
from mobius_ir_rules.testing import RuleCase, RuleConformance, op_counts, run_model

MOE = "com.microsoft::MoE"
EXPERTS = "mobius.moe::RoutedExperts"
NODE = "mobius.moe::RoutedExperts (node 'experts')"
HIDDEN, INNER, NUMBER, K = 16, 8, 6, 2
DIMS = {"T": 7, "B": 2, "S": 3}
# Routings, from `logits` to `chosen` and `share`.
SOFTMAX_OF_CHOSEN = """
    best, chosen = TopK (logits, k)
    share = Softmax <axis = 1> (best)"""
PART_OF_SOFTMAX = """
    best, chosen = TopK (logits, k)
    all = Softmax (logits)
    share = GatherElements <axis = 1> (all, chosen)"""
SIGMOID_WITH_BIAS = """
    score = Sigmoid (logits)
    corrected = Add (score, correction)
    best, chosen = TopK (corrected, k)
    part = GatherElements <axis = 1> (score, chosen)
    one = Constant <value_ints = [1]> ()
    sum = ReduceSum <keepdims = 1> (part, one)
    normed = Div (part, sum)
    factor = Constant <value_float = 2.5> ()
    share = Mul (normed, factor)"""
WORST = SOFTMAX_OF_CHOSEN.replace("TopK (", "TopK <largest = 0> (")
OTHER_LOGITS = SOFTMAX_OF_CHOSEN.replace("(best)", "(turned)").replace(
    "share", "turned = Neg (best)\n share"
)
OTHER_PART = PART_OF_SOFTMAX.replace("all = Softmax (logits)", "all = Sigmoid (logits)")
SOFTMAX_OF_OTHERS = PART_OF_SOFTMAX.replace("Softmax (logits)", "Softmax (correction)")
DIRECT = {MOE: 1, EXPERTS: 0, "TopK": 0, "Softmax": 0}
BY_LOGARITHM = {MOE: 1, EXPERTS: 0, "Log": 1, "ScatterElements": 1}


def graph(
    routing: str = SOFTMAX_OF_CHOSEN,
    attributes: str = 'activation_type = "relu"',
    x: str = "float[T,16]",
    logits: str = "float[T,6]",
    *,
    gated: bool = False,
    bias: bool = False,
    k: int = K,
    before: str = "",
    fc1: str = "fc1",
) -> Callable[[], ir.Model]:
    """Return a builder of a router and experts, their body attached.

    Without a routing, what is chosen and the shares are inputs. `before` computes what `fc1` is
    called then.
    """
    dtype, rows = x[: x.index("[")], 2 * INNER if gated else INNER
    inputs = [f"{x} x", f"{logits} logits", f"{logits} correction"]
    if not routing:
        inputs = [f"{x} x", f"int64[T,{k}] chosen", f"float[T,{k}] share"]
    weights = {"fc1": [NUMBER, rows, HIDDEN], "fc2": [NUMBER, HIDDEN, INNER]}
    if bias:
        weights |= {"fc1_bias": [NUMBER, rows], "fc2_bias": [NUMBER, HIDDEN]}
    inputs += [f"{dtype}{shape} {name}" for name, shape in weights.items()]
    text = f"""<ir_version: 10, opset_import: ["": 24, "mobius.moe": 1]>
        g ({", ".join(inputs)}) => ({x} y) {{
            k = Constant <value_ints = [{k}]> ()
            {before}
            {routing}
            [experts] y = mobius.moe.RoutedExperts <k = {k}, {attributes}>
                (x, chosen, share, {", ".join([fc1, *list(weights)[1:]])})
        }}"""

    def build() -> ir.Model:
        model = ir.from_onnx_text(text)
        random = np.random.default_rng(1)
        for name, shape in weights.items():
            (value,) = [value for value in model.graph.inputs if value.name == name]
            assert value.dtype is not None
            array = (random.standard_normal(shape) / 3).astype(value.dtype.numpy())
            value.const_value = ir.tensor(array, name=name)
            model.graph.inputs.remove(value)
            model.graph.initializers[name] = value
        InferShapes()(model)
        AttachFunctions()(model)
        return model

    return build


SWIGLU = 'activation_type = "swiglu", swiglu_fusion = '
CLIPPED = ", activation_alpha = 1.702, activation_beta = 1.0, swiglu_limit = 0.5"


def fused(name: str, build: Callable[[], ir.Model], after: dict[str, int]) -> RuleCase:
    return RuleCase(name, build, dims=DIMS, after=after)


CASES = [
    fused("softmax of the chosen", graph(), DIRECT),
    fused("part of the softmax", graph(PART_OF_SOFTMAX), DIRECT),
    fused("one expert", graph(k=1), DIRECT),
    fused("rank 3", graph(x="float[2,3,16]", logits="float[6,6]"), DIRECT),
    fused("sigmoid with a bias", graph(SIGMOID_WITH_BIAS), BY_LOGARITHM),
    fused(
        "sigmoid with a bias, rank 3",
        graph(SIGMOID_WITH_BIAS, x="float[B,S,16]", logits="float[6,6]"),
        BY_LOGARITHM,
    ),
    fused("the worst experts", graph(WORST), BY_LOGARITHM),
    fused("softmax of something else", graph(OTHER_LOGITS), BY_LOGARITHM),
    fused("part of something else", graph(OTHER_PART), BY_LOGARITHM),
    fused("part of another softmax", graph(SOFTMAX_OF_OTHERS), BY_LOGARITHM),
    fused("biases", graph(bias=True), DIRECT),
    *(
        fused(kind, graph(attributes=f'activation_type = "{kind}"'), DIRECT)
        for kind in ("gelu", "silu", "identity")
    ),
    fused("swiglu, rows in turn", graph(attributes=SWIGLU + "1", gated=True), DIRECT),
    fused("swiglu, rows in halves", graph(attributes=SWIGLU + "2", gated=True), DIRECT),
    fused(
        "swiglu, clipped, biases in halves",
        graph(SIGMOID_WITH_BIAS, SWIGLU + "2" + CLIPPED, gated=True, bias=True),
        BY_LOGARITHM,
    ),
]


def refused(name: str, build: Callable[[], ir.Model], reason: str) -> RuleCase:
    return RuleCase(name, build, applications=0, reasons=(reason,), dims=DIMS, after={EXPERTS: 1})


CASES += [
    refused(
        "scaled input",
        graph(attributes='activation_type = "relu", scale_input = 1'),
        f"{NODE} multiplies what goes into an expert by its share (scale_input=1); MoE multiplies "
        "what comes out.",
    ),
    *(
        refused(
            kind,
            graph(attributes=f'activation_type = "{kind}", swiglu_fusion = 2', gated="glu" in kind),
            f"{NODE} has activation_type='{kind}' and swiglu_limit_after_activation=0; one of "
            "['relu', 'gelu', 'silu', 'swiglu', 'identity'] and 0 is needed, which all kernels of "
            "MoE have.",
        )
        for kind in ("relu2", "geglu", "gelu_erf", "geglu_erf")
    ),
    refused(
        "halves of a computed weight",
        graph(
            attributes=SWIGLU + "2",
            gated=True,
            before="[turn] turned = Neg (fc1)",
            fc1="turned",
        ),
        f"The input 'fc1' of {NODE} is produced by Neg (node 'turn'); an initializer is needed, "
        "because its rows are put into another order.",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: RuleCase) -> None:
    """Cases C029 and C030."""
    RuleConformance(moe_rules).check(case)


def moe_of(build: Callable[[], ir.Model]) -> tuple[ir.Model, ir.Node]:
    model = onnxscript.rewriter.rewrite(build(), mobius_ir_rules.moe_rules())
    (node,) = [node for node in model.graph if node.op_type == "MoE"]
    return model, node


def test_every_attribute_of_the_activation_is_written() -> None:
    """Case C029: ONNX Runtime's defaults were GPT-OSS's once; no limit has no value."""
    _, node = moe_of(graph(attributes=SWIGLU + "2", gated=True))
    assert {name: attribute.value for name, attribute in node.attributes.items()} == {
        "k": K,
        "activation_type": "swiglu",
        "activation_alpha": 1.0,
        "activation_beta": 0.0,
        "swiglu_fusion": 1,
        "normalize_routing_weights": 1,
    }
    _, node = moe_of(graph(attributes=SWIGLU + "1" + CLIPPED, gated=True))
    assert node.attributes["swiglu_limit"].as_float() == 0.5


def test_omitted_biases_keep_their_place() -> None:
    """Case C029."""
    _, node = moe_of(graph())
    names = [None if value is None else value.name for value in node.inputs]
    assert names == ["x", "logits", "fc1", None, "fc2"]


def test_rows_move_in_the_weight_not_in_the_graph() -> None:
    build = graph(attributes=SWIGLU + "2", gated=True, bias=True)
    halves = build().graph.initializers["fc1"].const_value
    model, node = moe_of(build)
    FoldWeights()(model)
    RemoveUnused()(model)
    assert op_counts(model) == {MOE: 1}
    weight = node.inputs[2]
    assert weight is not None
    assert weight.name == "fc1"
    gate, linear = np.split(halves.numpy(), 2, axis=1)
    moved = weight.const_value.numpy()
    np.testing.assert_array_equal(moved[:, 0::2], gate)
    np.testing.assert_array_equal(moved[:, 1::2], linear)


def test_logits_of_another_type_are_not_rounded() -> None:
    """Rounded to float16 they might choose other experts: only the shares are."""
    build = graph(x="float16[T,16]", logits="float[T,6]")
    model, _ = moe_of(build)
    assert op_counts(model)["TopK"] == 1
    narrow = SOFTMAX_OF_CHOSEN.replace("TopK (logits", "TopK (wide")
    narrow = f"wide = Cast <to = 1> (logits)\n{narrow}"
    model, node = moe_of(graph(narrow, x="float16[T,16]", logits="float16[T,6]"))
    assert op_counts(model) == {MOE: 1}
    assert node.inputs[1] is model.graph.inputs[1]


def test_shares_of_zero_and_far_apart() -> None:
    """A token whose shares are all zero gets zero; one share of nearly nothing counts as that."""
    build = graph(routing="", logits="", bias=True)
    feeds = {
        "x": np.random.default_rng(0).standard_normal((3, HIDDEN)).astype(np.float32),
        "chosen": np.array([[0, 1], [2, 3], [4, 5]]),
        "share": np.array([[0.0, 0.0], [1.0, 1e-35], [0.0, 3.0]], np.float32),
    }
    expected = run_model(build(), feeds)["y"]
    model, _ = moe_of(build)
    assert np.abs(expected[1:]).max() > 0.1
    np.testing.assert_array_equal(expected[0], 0.0)
    np.testing.assert_allclose(run_model(model, feeds)["y"], expected, rtol=2e-6, atol=2e-6)
