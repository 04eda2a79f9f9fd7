"""Swish to primitives: numbers against ONNX Runtime's expansion of Swish, and the refusal."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
import pytest

from mobius_ir_rules.lowering.swish import swish_to_primitives_rules
from mobius_ir_rules.passes import InferShapes
from mobius_ir_rules.testing import RuleCase, RuleConformance, op_counts

CONFORMANCE = RuleConformance(swish_to_primitives_rules)


def graph(attributes: str = "", dtype: str = "float") -> Callable[[], ir.Model]:
    text = f"""
        <ir_version: 10, opset_import: ["" : 24]>
        g ({dtype}[N, 8] x) => ({dtype}[N, 8] y) {{ [act] y = Swish {attributes} (x) }}"""
    return lambda: ir.from_proto(onnx.parser.parse_model(text))


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize(
    ("attributes", "products"), [("", 1), ("<alpha = 1.0>", 1), ("<alpha = 1.702>", 2)]
)
def test_numbers(attributes: str, products: int, dtype: str) -> None:
    case = RuleCase(
        f"{attributes} {dtype}",
        graph(attributes, dtype),
        after={"Swish": 0, "Sigmoid": 1, "Mul": products},
        dims={"N": 5},
    )
    CONFORMANCE.check(case)


def test_new_values_are_declared() -> None:
    model = graph("<alpha = 2.0>", "float16")()
    assert CONFORMANCE.apply(model) == 1
    assert all(value.dtype == ir.DataType.FLOAT16 for node in model.graph for value in node.outputs)
    assert all(value.shape is not None for node in model.graph for value in node.outputs)


def test_an_unknown_type_is_refused_where_a_constant_is_needed() -> None:
    def build(alpha: float) -> Callable[[], ir.Model]:
        def make() -> ir.Model:
            model = graph(f"<alpha = {alpha}>")()
            node = model.graph.node(0)
            copy = ir.node("Identity", [node.inputs[0]])
            copy.outputs[0].name = "copy"
            node.prepend(copy)
            node.replace_input_with(0, copy.outputs[0])
            node.outputs[0].name = "activated"
            node.outputs[0].type = None
            last = ir.node("Identity", [node.outputs[0]])
            last.outputs[0].name, last.outputs[0].type = "y", copy.inputs[0].type
            node.append(last)
            model.graph.outputs[0] = last.outputs[0]
            return model

        return make

    reason = (
        "The element type of the input of Swish (node 'act') is not known; it is needed for the "
        "constant alpha = 2."
    )
    CONFORMANCE.check(
        RuleCase("refused", build(2.0), 0, (reason,), after={"Swish": 1}, dims={"N": 3})
    )
    CONFORMANCE.check(RuleCase("no constant", build(1.0), after={"Swish": 0}, dims={"N": 3}))


def test_counts_of_two() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 24]>
        g (float[N] x) => (float[N] y) { a = Swish (x)
            y = Swish <alpha = 0.5> (a) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    InferShapes()(model)
    assert CONFORMANCE.apply(model) == 2
    assert op_counts(model) == {"Sigmoid": 2, "Mul": 3, "Constant": 1}
