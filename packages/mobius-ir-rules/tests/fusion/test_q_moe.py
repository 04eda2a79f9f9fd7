"""QMoEFusion: routings, rows in halves with their scales, formats, and what is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import onnxscript.rewriter
import pytest

import mobius_ir_rules
from mobius_ir_rules.block_quantization import BlockFormat
from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.fusion.moe import moe_rules
from mobius_ir_rules.fusion.q_moe import q_moe_rules
from mobius_ir_rules.passes import FoldWeights, InferShapes, RemoveUnused
from mobius_ir_rules.passes.quantize_weights import QuantizeWeights, WeightUse
from mobius_ir_rules.testing import RuleCase, RuleConformance, op_counts, run_model

QMOE = "com.microsoft::QMoE"
EXPERTS = "mobius.moe::RoutedExperts"
NODE = "mobius.moe::RoutedExperts (node 'experts')"
HIDDEN, INNER, NUMBER, K = 32, 16, 6, 2
DIMS = {"T": 7, "B": 2, "S": 3}
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
    factor = Constant <value_float = 2.5> ()
    share = Mul (part, factor)"""
WORST = SOFTMAX_OF_CHOSEN.replace("TopK (", "TopK <largest = 0> (")
DIRECT = {QMOE: 1, EXPERTS: 0, "TopK": 0, "Softmax": 0}
SCATTERED = {QMOE: 1, EXPERTS: 0, "ScatterElements": 1}
SWIGLU = 'activation_type = "swiglu", swiglu_fusion = '
CLIPPED = ", activation_alpha = 1.702, activation_beta = 1.0, swiglu_limit = 0.5"
INT4, ZEROS = BlockFormat(4, 16, True), BlockFormat(4, 16, False)

Forms = dict[str, BlockFormat]


def graph(
    routing: str = SOFTMAX_OF_CHOSEN,
    attributes: str = 'activation_type = "relu"',
    x: str = "float[T,32]",
    *,
    gated: bool = False,
    bias: bool = False,
    forms: BlockFormat | Forms | None = INT4,
) -> Callable[[], ir.Model]:
    """Return a builder of a router and experts with integers, their body attached.

    Without a routing, what is chosen and the shares are inputs.
    """
    dtype, rows = x[: x.index("[")], 2 * INNER if gated else INNER
    tokens = "6" if "," in x[x.index(",") + 1 :] else "T"
    inputs = [f"{x} x", f"float[{tokens},6] logits", f"float[{tokens},6] correction"]
    if not routing:
        inputs = [f"{x} x", f"int64[T,{K}] chosen", f"float[T,{K}] share"]
    weights = {"fc1": [NUMBER, rows, HIDDEN], "fc2": [NUMBER, HIDDEN, INNER]}
    if bias:
        weights |= {"fc1_bias": [NUMBER, rows], "fc2_bias": [NUMBER, HIDDEN]}
    inputs += [f"{dtype}{shape} {name}" for name, shape in weights.items()]
    text = f"""<ir_version: 10, opset_import: ["": 24, "mobius.moe": 1]>
        g ({", ".join(inputs)}) => ({x} y) {{
            k = Constant <value_ints = [{K}]> ()
            {routing}
            [experts] y = mobius.moe.RoutedExperts <k = {K}, {attributes}>
                (x, chosen, share, {", ".join(weights)})
        }}"""

    def choose(use: WeightUse) -> BlockFormat | None:
        return forms.get(use.names[0]) if isinstance(forms, dict) else forms

    def build() -> ir.Model:
        model = ir.from_onnx_text(text)
        random = np.random.default_rng(1)
        for name, shape in weights.items():
            (value,) = [value for value in model.graph.inputs if value.name == name]
            assert value.dtype is not None
            array = (random.standard_normal(shape) / shape[-1] ** 0.5).astype(value.dtype.numpy())
            value.const_value = ir.tensor(array, name=name)
            model.graph.inputs.remove(value)
            model.graph.initializers[name] = value
        InferShapes()(model)
        QuantizeWeights(choose)(model)
        AttachFunctions()(model)
        return model

    return build


def fused(name: str, build: Callable[[], ir.Model], after: dict[str, int]) -> RuleCase:
    return RuleCase(name, build, dims=DIMS, after=after)


CASES = [
    fused("softmax of the chosen", graph(), DIRECT),
    fused("part of the softmax", graph(PART_OF_SOFTMAX), SCATTERED),
    fused("sigmoid with a bias", graph(SIGMOID_WITH_BIAS), SCATTERED),
    fused("the worst experts", graph(WORST), SCATTERED),
    fused("rank 3", graph(SIGMOID_WITH_BIAS, x="float[2,3,32]"), SCATTERED),
    fused("zero points", graph(forms=ZEROS), DIRECT),
    fused("biases", graph(bias=True), DIRECT),
    *(
        fused(kind, graph(attributes=f'activation_type = "{kind}"'), DIRECT)
        for kind in ("gelu", "silu", "identity")
    ),
    fused("swiglu, rows in turn", graph(attributes=SWIGLU + "1", gated=True), DIRECT),
    fused("swiglu, rows in halves", graph(attributes=SWIGLU + "2", gated=True), DIRECT),
    fused(
        "swiglu, clipped, zero points and biases in halves",
        graph(SIGMOID_WITH_BIAS, SWIGLU + "2" + CLIPPED, gated=True, bias=True, forms=ZEROS),
        SCATTERED,
    ),
]


def refused(name: str, build: Callable[[], ir.Model], reason: str) -> RuleCase:
    return RuleCase(name, build, applications=0, reasons=(reason,), dims=DIMS, after={EXPERTS: 1})


CASES += [
    refused(
        "scaled input",
        graph(attributes='activation_type = "relu", scale_input = 1'),
        f"{NODE} multiplies what goes into an expert by its share (scale_input=1); QMoE "
        "multiplies what comes out.",
    ),
    refused(
        "squared relu",
        graph(attributes='activation_type = "relu2"'),
        f"{NODE} has activation_type='relu2' and swiglu_limit_after_activation=0; one of ['relu', "
        "'gelu', 'silu', 'swiglu', 'identity'] and 0 is needed, which all kernels of QMoE have.",
    ),
    refused(
        "one layer",
        graph(forms={"fc1": INT4}),
        f"The layers of {NODE} have the formats ExpertFormat(bits=4, block_size=16) and None; QMoE "
        "has one for both.",
    ),
    refused(
        "two formats",
        graph(forms={"fc1": INT4, "fc2": BlockFormat(8, 16, True)}),
        f"The layers of {NODE} have the formats ExpertFormat(bits=4, block_size=16) and "
        "ExpertFormat(bits=8, block_size=16); QMoE has one for both.",
    ),
    RuleCase(
        "floats are no candidates", graph(forms=None), applications=0, dims=DIMS, after={EXPERTS: 1}
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: RuleCase) -> None:
    """Cases C029, C030 and C070."""
    RuleConformance(q_moe_rules).check(case)


def test_what_the_target_lacks_is_refused() -> None:
    """One setting, and several that are wrong together only."""
    wrong = {"block_size=16": "its blocks are larger"}
    reason = (
        f"QMoE of {NODE} would have block_size=16, which the target does not run: its blocks are "
        "larger."
    )
    RuleConformance(functools.partial(q_moe_rules, wrong=wrong)).check(
        refused("block size", graph(), reason)
    )
    eight = graph(forms=BlockFormat(8, 16, True))
    wrong = {"expert_weight_bits=8, accuracy_level=0": "it rounds"}
    for level, count in ((0, 0), (3, 0), (4, 1)):
        model = onnxscript.rewriter.rewrite(eight(), q_moe_rules(accuracy_level=level, wrong=wrong))
        assert op_counts(model)[QMOE] == count


def test_integers_are_not_of_moe() -> None:
    model = onnxscript.rewriter.rewrite(graph()(), moe_rules())
    assert op_counts(model)[EXPERTS] == 1


def fused_node(build: Callable[[], ir.Model], level: int = 0) -> tuple[ir.Model, ir.Node]:
    rules = mobius_ir_rules.q_moe_rules(accuracy_level=level)
    model = onnxscript.rewriter.rewrite(build(), rules)
    (node,) = [node for node in model.graph if node.op_type == "QMoE"]
    return model, node


def test_every_attribute_is_written() -> None:
    """Cases C029, C070: the raw layout is said, and so is what the activation is."""
    _, node = fused_node(graph(attributes=SWIGLU + "2", gated=True))
    plain = {name: attribute.value for name, attribute in node.attributes.items()}
    assert plain == {
        "k": K,
        "activation_type": "swiglu",
        "activation_alpha": 1.0,
        "activation_beta": 0.0,
        "swiglu_fusion": 1,
        "normalize_routing_weights": 1,
        "expert_weight_bits": 4,
        "block_size": 16,
        "quant_type": "int",
        "weights_prepacked": 0,
    }
    _, node = fused_node(graph(), level=4)
    assert node.attributes["accuracy_level"].as_int() == 4


def test_operands_have_their_places() -> None:
    """Case C029: what is omitted leaves its slot empty."""
    _, node = fused_node(graph(SIGMOID_WITH_BIAS, bias=True, forms=ZEROS))
    names = [None if value is None else value.name for value in node.inputs]
    assert names[1] == names[14]
    assert names[2:14] == [
        *("fc1.qweight", "fc1.scales", "fc1_bias", "fc2.qweight", "fc2.scales", "fc2_bias"),
        *(None, None, None),
        *("fc1.zero_points", "fc2.zero_points", None),
    ]


def test_rows_move_in_the_weights_not_in_the_graph() -> None:
    build = graph(attributes=SWIGLU + "2", gated=True, bias=True, forms=ZEROS)
    before = {name: value.const_value.numpy() for name, value in build().graph.initializers.items()}
    model, node = fused_node(build)
    FoldWeights()(model)
    RemoveUnused()(model)
    assert op_counts(model) == {QMOE: 1}
    for index, name in ((2, "fc1.qweight"), (3, "fc1.scales"), (4, "fc1_bias"),
                        (11, "fc1.zero_points")):  # fmt: skip
        value = node.inputs[index]
        assert value is not None
        assert value.name == name
        assert value.const_value is not None
        gate, linear = np.split(before[name], 2, axis=1)
        moved = value.const_value.numpy()
        np.testing.assert_array_equal(moved[:, 0::2], gate)
        np.testing.assert_array_equal(moved[:, 1::2], linear)


def test_shares_of_zero_and_far_apart() -> None:
    """A share of zero counts nothing, whichever expert the kernel takes in its place."""
    build = graph(routing="", bias=True)
    feeds = {
        "x": np.random.default_rng(0).standard_normal((3, HIDDEN)).astype(np.float32),
        "chosen": np.array([[0, 1], [2, 3], [4, 5]]),
        "share": np.array([[0.0, 0.0], [1.0, 1e-35], [0.0, 3.0]], np.float32),
    }
    expected = run_model(build(), feeds)["y"]
    model, _ = fused_node(build)
    assert np.abs(expected[1:]).max() > 0.1
    np.testing.assert_array_equal(expected[0], 0.0)
    np.testing.assert_allclose(run_model(model, feeds)["y"], expected, rtol=2e-6, atol=2e-6)
