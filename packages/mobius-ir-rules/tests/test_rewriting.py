"""apply_rules: one walk that shows each rule its roots, in graphs, branches and functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript.rewriter import RewriteRule

from mobius_ir_rules import fused_matmul_rules
from mobius_ir_rules.functions import FUNCTIONS
from mobius_ir_rules.match_log import MatchLog, refusals
from mobius_ir_rules.passes.graphs import all_nodes, op_counts
from mobius_ir_rules.rewriting import apply_rules
from mobius_ir_rules.rule import Plan, RefusedError, Rule, refuse
from mobius_ir_rules.values import describe_node, like, make, producer_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Inner(Plan):
    x: ir.Value


class DoubleNeg(Rule):
    """-(-x) -> Identity(x); refuses where the inner node is to be kept."""

    roots = (("", "Neg"),)
    emits = (("", "Identity"),)

    def plan(self, node: ir.Node) -> _Inner | None:
        inner = producer_of(node.inputs[0], "", "Neg")
        if inner is None or inner.inputs[0] is None:
            return None
        if inner.name == "keep":
            refuse(f"{describe_node(inner)} is to be kept.", inner)
        return _Inner(root=node, replaced=(node.outputs[0],), absorbed=(inner,), x=inner.inputs[0])

    def emit(self, op: Any, plan: _Inner) -> Sequence[ir.Value]:
        return [make(op, "Identity", [plan.x], like(plan.replaced[0]), name="same")]


class NegToMul(DoubleNeg):
    """-(-x) -> x * 1, by an initializer."""

    def emit(self, op: Any, plan: _Inner) -> Sequence[ir.Value]:
        one = op.initializer(ir.tensor(np.ones(1, np.float32), name="one"))
        return [make(op, "Mul", [plan.x, one], like(plan.replaced[0]))]


def model(body: str, functions: str = "") -> ir.Model:
    return ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 24, "test" : 1]>\n'
        f"g (float[N] x) => (float[N] y) {{ {body} }}\n{functions}"
    )


CHAIN = "a = Neg(x)\nb = Neg(a)\n[keep] c = Neg(b)\n[last] y = Neg(c)"


def test_the_result_is_rewritten_and_named() -> None:
    found = model("a = Neg(x)\nb = Neg(a)\nc = Abs(b)\nd = Neg(c)\ny = Neg(d)")
    result = apply_rules(found, [DoubleNeg()])
    assert (result.applications, result.refusals) == (2, ())
    assert op_counts(found) == {"Identity": 2, "Abs": 1}
    names = [node.name for node in found.graph]
    assert len(set(names)) == 3
    assert {"same", "same_2"} < set(names)


def test_refusals_are_those_of_the_walk() -> None:
    """`keep` is refused once its input was rewritten, and its reader because of its name."""
    found = model(CHAIN)
    result = apply_rules(found, [DoubleNeg()])
    assert result.applications == 1
    reason = "Neg (node 'keep') is to be kept."
    assert [refusal.reason for refusal in result.refusals] == [reason]
    assert refusals(found, [DoubleNeg()]) == list(result.refusals)


def test_the_first_rule_that_fits_is_applied() -> None:
    found = model("a = Neg(x)\ny = Neg(a)")
    assert apply_rules(found, [NegToMul(), DoubleNeg()]).applications == 1
    assert op_counts(found) == {"Mul": 1}
    assert "one" in found.graph.initializers


def test_new_nodes_take_the_metadata_of_the_old_ones() -> None:
    found = model("a = Neg(x)\ny = Neg(a)")
    for node in found.graph:
        node.metadata_props["namespace"] = "layers.3"
    apply_rules(found, [DoubleNeg()])
    (node,) = found.graph
    assert node.metadata_props["namespace"] == "layers.3"


def test_branches_are_visited() -> None:
    found = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["" : 24]>
        g (float[N] x, bool c) => (float[N] y) {
            y = If (c) <
                then_branch = yes () => (float[N] p) { a = Neg(x) [double] p = Neg(a) },
                else_branch = no () => (float[N] q) { [keep] b = Neg(x) [last] q = Neg(b) }
            >
        }
    """)
    result = apply_rules(found, [DoubleNeg()])
    assert result.applications == 1
    assert [refusal.node for refusal in result.refusals] == ["last"]
    assert op_counts(found) == {"If": 1, "Identity": 1, "Neg": 2}


def test_functions_have_no_initializers() -> None:
    functions = (
        '<opset_import: ["" : 24], domain: "test">\nOther (p) => (r) { q = Neg(p) r = Neg(q) }'
    )
    found = model("y = test.Other(x)", functions)
    with pytest.raises(ValueError, match="makes the initializer 'one' in the function 'Other'"):
        apply_rules(found, [NegToMul()])


def test_a_body_is_not_written_with_its_own_operator() -> None:
    """C095: the branches in the body of FusedMatMul hold a Transpose and a MatMul."""
    found = model("y = Neg(x)")
    body = FUNCTIONS["com.microsoft", "FusedMatMul"](24)
    found.functions[body.identifier()] = body
    assert sum(node.op_type == "MatMul" for node in all_nodes(body)) > 0
    assert apply_rules(found, fused_matmul_rules()).applications == 0
    assert not any(node.op_type == "FusedMatMul" for node in all_nodes(body))


def test_rules_without_roots_are_an_error() -> None:
    plain = RewriteRule(lambda op, x: op.Neg(op.Neg(x)), lambda op, x: op.Identity(x), name="plain")
    with pytest.raises(TypeError, match="plain is a RewriteRule, which does not say its roots"):
        apply_rules(model("y = Neg(x)"), [plain])
    assert refusals(model("y = Neg(x)"), [plain]) == []


def test_match_tells_a_tracer_and_raises_without_one() -> None:
    found = model("[keep] a = Neg(x)\ny = Neg(a)")
    outer = found.graph.node(1)
    with pytest.raises(RefusedError, match="is to be kept"):
        DoubleNeg().match(found, found.graph, outer)
    log = MatchLog()
    assert DoubleNeg().match(found, found.graph, outer, tracer=log) is None
    assert [refusal.node for refusal in log.refusals] == [outer.outputs[0].name]
