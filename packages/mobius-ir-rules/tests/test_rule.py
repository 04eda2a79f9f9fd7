"""Rule: what a subclass can rely on, and what it cannot get wrong silently."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import pytest
from onnxscript.rewriter import RewriteRuleSet, rewrite

from mobius_ir_rules.match_log import Refusal, refusals
from mobius_ir_rules.rule import Plan, RefusedError, Rule, refuse
from mobius_ir_rules.testing import RuleCase, RuleConformance, op_counts
from mobius_ir_rules.values import (
    available_at,
    describe_node,
    float_attribute,
    input_at,
    like,
    make,
    output_at,
    producer_of,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _DoublePlan(Plan):
    x: ir.Value


class DoubleNeg(Rule):
    """-(-x) -> Identity(x); refuses where the inner node has a name that says so."""

    roots = (("", "Neg"),)
    emits = (("test", "Double"), ("", "Identity"))

    def plan(self, node: ir.Node) -> _DoublePlan | None:
        inner = producer_of(input_at(node, 0), "", "Neg")
        if inner is None or inner.inputs[0] is None:
            return None
        if inner.name == "keep":
            refuse(f"{describe_node(inner)} is to be kept.", inner)
        return _DoublePlan(
            root=node, replaced=(node.outputs[0],), absorbed=(inner,), x=inner.inputs[0]
        )

    def emit(self, op: Any, plan: _DoublePlan) -> Sequence[ir.Value]:
        return [make(op, "Identity", [plan.x], like(plan.replaced[0]), name=plan.root.name)]


def model(body: str, outputs: str = "float[N] y", functions: str = "") -> ir.Model:
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 24, "test" : 1]>\n'
        f"g (float[N] x) => ({outputs}) {{ {body} }}\n{functions}"
    )


def operators(graph: ir.Graph | ir.Function) -> list[str]:
    return [node.op_type for node in graph]


def test_conformance() -> None:
    body = "a = Neg(x)\n[outer] y = Neg(a)\n[keep] b = Neg(x)\n[second] z = Neg(b)"
    RuleConformance(lambda: [DoubleNeg()]).check(
        RuleCase(
            "double",
            lambda: model(body, "float[N] y, float[N] z"),
            1,
            ("Neg (node 'keep') is to be kept.",),
            after={"Identity": 1, "Neg": 2},
            dims={"N": 3},
            nested=False,
        )
    )


def test_absorbed_nodes_go_only_where_nothing_reads_them() -> None:
    used = model("a = Neg(x)\ny = Neg(a)\nz = Abs(a)", "float[N] y, float[N] z")
    assert RewriteRuleSet([DoubleNeg()]).apply_to_model(used) == 1
    assert operators(used.graph) == ["Neg", "Identity", "Abs"]
    output = model("a = Neg(x)\ny = Neg(a)", "float[N] y, float[N] a")
    assert RewriteRuleSet([DoubleNeg()]).apply_to_model(output) == 1
    assert operators(output.graph) == ["Neg", "Identity"]
    assert [value.name for value in output.graph.outputs] == ["y", "a"]
    unused = model("a = Neg(x)\ny = Neg(a)")
    assert RewriteRuleSet([DoubleNeg()]).apply_to_model(unused) == 1
    assert operators(unused.graph) == ["Identity"]


def test_functions_are_rewritten_but_not_the_body_of_what_the_rule_makes() -> None:
    functions = """
    <opset_import: ["" : 24], domain: "test">
    Other (p) => (r) { q = Neg(p)  r = Neg(q) }
    <opset_import: ["" : 24], domain: "test">
    Double (p) => (r) { q = Neg(p)  r = Neg(q) }
    """
    found = model("b = test.Other(x)\ny = test.Double(b)", functions=functions)
    assert RewriteRuleSet([DoubleNeg()]).apply_to_model(found) == 1
    bodies = {key[1]: operators(function) for key, function in found.functions.items()}
    assert bodies == {"Other": ["Identity"], "Double": ["Neg", "Neg"]}


def test_reporting_changes_nothing() -> None:
    """A traced run must not leave new nodes as readers of the graph's values."""
    found = model("a = Neg(x)\n[outer] y = Neg(a)")
    before = ir.to_proto(found)
    assert refusals(found, [DoubleNeg()]) == []
    assert ir.to_proto(found) == before
    assert len(found.graph.inputs[0].uses()) == 1


def test_refusals_name_rule_node_and_reason() -> None:
    found = model("[keep] a = Neg(x)\n[outer] y = Neg(a)")
    (refusal,) = refusals(found, [DoubleNeg()])
    reason = "Neg (node 'keep') is to be kept."
    assert refusal == Refusal("DoubleNeg", "outer", "Neg", reason)
    assert str(refusal) == f"outer (Neg): {reason}"
    nameless = model("[keep] a = Neg(x)\ny = Neg(a)")
    (refusal,) = refusals(nameless, [DoubleNeg()])
    assert refusal.node == "y"


def test_rules_keep_no_state() -> None:
    rule = DoubleNeg()
    with pytest.raises(AttributeError, match="Cannot set 'seen' on the rule 'DoubleNeg'"):
        rule.seen = 1  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="Cannot set 'name'"):
        rule.name = "other"


class _Faulty(DoubleNeg):
    """Plans or emits what `fault` says, to be caught."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        super().__init__("Faulty")

    def plan(self, node: ir.Node) -> _DoublePlan | None:
        plan = super().plan(node)
        if plan is not None and self.fault == "replaces nothing":
            return dataclasses.replace(plan, replaced=())
        if plan is not None and self.fault == "another root":
            return dataclasses.replace(plan, root=plan.absorbed[0])
        return plan

    def emit(self, op: Any, plan: _DoublePlan) -> Sequence[ir.Value]:
        return {"too many": [*super().emit(op, plan)] * 2, "existing value": [plan.x]}[self.fault]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("replaces nothing", "does not replace its output 'y', which is used"),
        ("another root", "made a plan for another node"),
        ("too many", "plans to replace 1 values and emitted 2"),
        ("existing value", "replaces 'y' by the existing value 'x'; emit an Identity of it"),
    ],
)
def test_faults_of_a_rule_are_errors(fault: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RewriteRuleSet([_Faulty(fault)]).apply_to_model(model("a = Neg(x)\ny = Neg(a)"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _PairPlan(Plan):
    x: ir.Value


class Halves(Rule):
    """Neg(x), read by an Abs -> one node with two outputs, at the place of the first."""

    roots = (("", "Neg"),)
    emits = (("test", "NegAbs"),)

    def plan(self, node: ir.Node) -> _PairPlan | None:
        readers = [use.node for use in node.outputs[0].uses() if use.node.op_type == "Abs"]
        if not readers or node.inputs[0] is None:
            return None
        return _PairPlan(
            root=node,
            replaced=(node.outputs[0], readers[0].outputs[0]),
            absorbed=(readers[0],),
            x=node.inputs[0],
        )

    def emit(self, op: Any, plan: _PairPlan) -> Sequence[ir.Value]:
        made: Sequence[ir.Value] = op.NegAbs(plan.x, _domain="test", _outputs=2)
        return made


def test_several_replaced_values() -> None:
    """Readers of the first value that come before the second still find it made before them."""
    found = model("a = Neg(x)\nz = Exp(a)\ny = Abs(a)", "float[N] y, float[N] z")
    assert RewriteRuleSet([Halves()]).apply_to_model(found) == 1
    assert operators(found.graph) == ["NegAbs", "Exp"]
    assert [value.name for value in found.graph.outputs] == ["y", "z"]
    assert [str(value.type) for value in found.graph.outputs] == ["FLOAT"] * 2
    assert found.graph.opset_imports == {"": 24, "test": 1}


def test_rewrite_and_commute_take_the_rules_as_they_are() -> None:
    found = rewrite(model("a = Neg(x)\ny = Neg(a)"), [DoubleNeg()])
    assert op_counts(found) == {"Identity": 1}
    commuted = RewriteRuleSet([DoubleNeg()], commute=True)
    assert commuted.apply_to_model(model("a = Neg(x)\ny = Neg(a)")) == 1


def test_omitted_inputs_and_outputs_read_as_none() -> None:
    """C101: slots that are absent, in the middle or at the end, are `None`."""
    found = model("p, , q = test.Many(x, , x)\ny = Add(p, q)").graph.node(0)
    read = [input_at(found, index) is None for index in range(5)]
    assert read == [False, True, False, True, True]
    made = [output_at(found, index) is None for index in range(5)]
    assert made == [False, True, False, True, True]


def test_attributes_that_the_caller_of_a_function_decides_are_no_proof() -> None:
    node = ir.Node("", "Attention", [], [ir.RefAttr("scale", "outer", ir.AttributeType.FLOAT)])
    with pytest.raises(RefusedError) as caught:
        float_attribute(node, "scale", 1.0)
    assert caught.value.reason == (
        "The attribute 'scale' of Attention (node '') refers to an attribute of the enclosing "
        "function; a value that is known here is needed."
    )
    assert float_attribute(node, "softcap", 1.5) == 1.5


def test_a_value_is_available_where_it_is_made_before() -> None:
    graph = model("a = Neg(x)\nb = Abs(a)\ny = Exp(b)").graph
    neg, absolute, _ = graph
    assert available_at(graph.inputs[0], absolute)
    assert available_at(neg.outputs[0], absolute)
    assert available_at(None, absolute)
    assert not available_at(absolute.outputs[0], absolute)
    assert not available_at(absolute.outputs[0], neg)


BROKEN: dict[str, tuple[Callable[[], ir.Model], dict[str, Any], str]] = {
    "applications": (
        lambda: model("a = Neg(x)\ny = Neg(a)"),
        {"applications": 2},
        "1 applications, expected 2",
    ),
    "reasons": (
        lambda: model("[keep] a = Neg(x)\ny = Neg(a)"),
        {"applications": 0, "reasons": ("Another.",)},
        r"refusals are \(\"Neg \(node 'keep'\) is to be kept.\",\), expected \('Another.',\)",
    ),
    "operators": (
        lambda: model("a = Neg(x)\ny = Neg(a)"),
        {"after": {"Neg": 1}},
        "operators are {'Neg': 0}, expected {'Neg': 1}",
    ),
    "none of what was never there": (
        lambda: model("a = Neg(x)\ny = Neg(a)"),
        {"after": {"Neg": 0, "Typo": 0, "test::Double": 0}},
        r"none of \['Typo'\] is expected afterwards; the model has none and no rule makes one",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_conformance_finds_wrong_expectations(name: str) -> None:
    build, expected, message = BROKEN[name]
    with pytest.raises(AssertionError, match=f"Case 'x': {message}"):
        RuleConformance(lambda: [DoubleNeg()]).check(
            RuleCase("x", build, dims={"N": 3}, **expected)
        )


class WrongNumbers(DoubleNeg):
    """Replaces by something else."""

    def emit(self, op: Any, plan: _DoublePlan) -> Sequence[ir.Value]:
        return [make(op, "Abs", [plan.x], like(plan.replaced[0]))]


class NeverDone(DoubleNeg):
    """Makes what it looks for, hidden by a dead reader until that is dropped."""

    def plan(self, node: ir.Node) -> _DoublePlan | None:
        plan = super().plan(node)
        return plan if plan is not None and len(plan.absorbed[0].outputs[0].uses()) == 1 else None

    def emit(self, op: Any, plan: _DoublePlan) -> Sequence[ir.Value]:
        inner = make(op, "Neg", [plan.x], like(plan.x))
        make(op, "Abs", [inner], like(plan.x))
        return [make(op, "Neg", [inner], like(plan.replaced[0]))]


class Counting(DoubleNeg):
    """Names its nodes by a count that it hides from the freeze."""

    counts: list[int] = []  # noqa: RUF012 - the state that the check is to find

    def emit(self, op: Any, plan: _DoublePlan) -> Sequence[ir.Value]:
        self.counts.append(0)
        name = f"n{len(self.counts)}"
        return [make(op, "Identity", [plan.x], like(plan.replaced[0]), name=name)]


class WrongType(DoubleNeg):
    """Loses the name of an output, which is what a rule that renames would do."""

    def emit(self, op: Any, plan: _DoublePlan) -> Sequence[ir.Value]:
        plan.replaced[0].name = "renamed"
        return super().emit(op, plan)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (WrongNumbers, "'y' in the graph differs by"),
        (NeverDone, "a second run applied the rules again"),
        (Counting, "of the same rule instances gave another model"),
        (WrongType, "inputs or outputs changed from"),
    ],
)
def test_conformance_finds_unsound_rules(rule: type[Rule], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        RuleConformance(lambda: [rule()]).check(
            RuleCase("x", lambda: model("a = Neg(x)\ny = Neg(a)"), dims={"N": 8})
        )


class OnlyOutside(DoubleNeg):
    """Is silent about nodes in subgraphs."""

    def plan(self, node: ir.Node) -> _DoublePlan | None:
        graph = node.graph
        return super().plan(node) if graph is not None and graph.name != "then" else None


def test_conformance_finds_rules_that_are_silent_in_subgraphs() -> None:
    with pytest.raises(AssertionError, match="0 candidates were rewritten and 0 refused; 1 are"):
        RuleConformance(lambda: [OnlyOutside()]).check(
            RuleCase("x", lambda: model("a = Neg(x)\ny = Neg(a)"), dims={"N": 8})
        )


def test_conformance_says_which_input_it_cannot_make() -> None:
    build = lambda: model("a = Neg(x)\ny = Neg(a)")  # noqa: E731
    with pytest.raises(ValueError, match=r"The input 'x' has the dimension N: give its size\."):
        RuleConformance(lambda: [DoubleNeg()]).check(RuleCase("x", build))
