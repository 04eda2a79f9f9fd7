"""Or to Not and And: all four rows of the truth table, broadcasting, and negated operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from mobius_ir_rules.functions import FUNCTIONS
from mobius_ir_rules.functions.masks import CAUSAL_MASK
from mobius_ir_rules.lowering.logical_or import or_to_primitives_rules
from mobius_ir_rules.passes import InlineFunctions
from mobius_ir_rules.testing import RuleCase, RuleConformance, op_counts, run_model

CONFORMANCE = RuleConformance(or_to_primitives_rules)
ROW = np.array([[False, True]])
COLUMN = np.array([[False], [True]])
CASES: dict[str, tuple[str, int, Mapping[str, int]]] = {
    "plain": ("y = Or (a, b)", 1, {"Or": 0, "And": 1, "Not": 3}),
    "one operand twice": ("y = Or (a, a)", 1, {"Or": 0, "And": 1}),
    "a negated operand": ("n = Not (a) y = Or (n, b)", 1, {"Or": 0, "And": 1, "Not": 2}),
    "two in a row": ("t = Or (a, b) y = Or (t, b)", 2, {"Or": 0, "And": 2}),
}


def graph(body: str) -> Callable[[], ir.Model]:
    text = f"""
        <ir_version: 10, opset_import: ["" : 24]>
        g (bool[N, M] a, bool[K, L] b) => (bool[P, Q] y) {{ {body} }}"""
    return lambda: ir.from_proto(onnx.parser.parse_model(text))


@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str) -> None:
    body, applications, after = CASES[name]
    case = RuleCase(name, graph(body), applications, after=after, inputs={"a": ROW, "b": COLUMN})
    CONFORMANCE.check(case)


def test_a_decoder_mask_is_the_same() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 24, "mobius.mask" : 1]>
        g (int64[B, T] attention_mask, int64[B, S] position_ids) => (bool[B, 1, S, T] y) {
            y = mobius.mask.CausalMask (attention_mask, position_ids) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    function = FUNCTIONS[CAUSAL_MASK](24)
    model.functions[function.identifier()] = function
    InlineFunctions()(model)
    inputs = {
        "attention_mask": np.array([[1, 1, 1, 0], [1, 1, 1, 1]]),
        "position_ids": np.array([[0, 1, 2], [1, 2, 3]]),
    }
    before = run_model(model, inputs)["y"]
    assert CONFORMANCE.apply(model) == 1
    assert op_counts(model)["Or"] == 0
    np.testing.assert_array_equal(run_model(model, inputs)["y"], before)
