"""GeluFusion: a GELU written out in primitives -> the standard operator Gelu."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext, RewriteRule

from mobius_ir_rules.fusion.polynomial import (
    Polynomial,
    arithmetic,
    describe,
    matches,
    polynomial,
    scalar,
)
from mobius_ir_rules.rule import Plan, Rule, refuse
from mobius_ir_rules.values import describe_node, input_at, like, make, rank

OLDEST_OPSET = 20
"""First opset with Gelu."""

TOLERANCES = {
    ir.DataType.DOUBLE: 1e-9,
    ir.DataType.FLOAT: 1e-6,
    ir.DataType.FLOAT16: 2e-3,
    ir.DataType.BFLOAT16: 1.6e-2,
}
"""Relative tolerance of a coefficient: a product of constants rounded to the type, and no more.

1.4142 for the root of two is wrong by 1e-5 and refused in float32.
"""

_ROOT = math.sqrt(2.0 / math.pi)
_INNER: dict[str, Polynomial] = {
    "Erf": {(1,): math.sqrt(0.5)},
    "Tanh": {(1,): _ROOT, (3,): 0.044715 * _ROOT},
}
_APPROXIMATE = {"Erf": None, "Tanh": "tanh"}
_OUTER: Polynomial = {(1, 0): 0.5, (1, 1): 0.5}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _GeluPlan(Plan):
    x: ir.Value
    approximate: str | None


@dataclasses.dataclass(frozen=True)
class _Candidate:
    """`c * x * (1 + function(p(x)))`: what the node computes, whatever c and p are."""

    x: ir.Value
    function: ir.Node
    inner: Polynomial
    outer: Polynomial
    chain: tuple[ir.Node, ...]


class GeluFusion(Rule):
    """Fuse a GELU of primitives, exact or tanh, written in any order.

    Before, the exact form:

        y = Mul(Mul(x, 0.5), Add(Erf(Div(x, sqrt(2))), 1))

    or its tanh approximation:

        y = Mul(Mul(x, 0.5),
                Add(Tanh(Mul(sqrt(2 / pi), Add(x, Mul(0.044715, Pow(x, 3))))), 1))

    After:

        y = Gelu <approximate> (x)

    Both sides are compared as polynomials, in `x` inside Erf or Tanh and in `x` and its result
    outside, so the order of operands and the way constants are multiplied make no difference.
    Every constant must be right to the precision of the type; other approximations
    (`x * Sigmoid(1.702 * x)`) are other functions and stay.
    """

    roots = (("", "Mul"), ("", "Div"))
    emits = (("", "Gelu"),)

    def plan(self, node: ir.Node) -> _GeluPlan | None:
        """Return what to do with the last node of the chain, `None` where it is none."""
        found = _candidate(node)
        if found is None:
            return None
        dtype = found.x.dtype or found.function.outputs[0].dtype
        if dtype not in TOLERANCES:
            refuse(
                f"The input of {describe_node(found.function)} has the type {dtype or 'unknown'}; "
                "FLOAT, FLOAT16, BFLOAT16 or DOUBLE is needed.",
                found.function,
            )
        tolerance = TOLERANCES[dtype]
        if not matches(found.outer, _OUTER, tolerance):
            if _is_part_of_another(node, found):
                return None
            refuse(
                f"{describe_node(node)} is {describe(found.outer, ['x', 't'])} with t the result "
                f"of {describe_node(found.function)}; {describe(_OUTER, ['x', 't'])} is needed.",
                node,
            )
        wanted = _INNER[found.function.op_type]
        if not matches(found.inner, wanted, tolerance):
            refuse(
                f"{describe_node(found.function)} is taken of {describe(found.inner, ['x'])}; "
                f"{describe(wanted, ['x'])} is needed.",
                found.function,
            )
        _require_opset(node)
        _require_scalars(found)
        return _GeluPlan(
            root=node,
            replaced=(node.outputs[0],),
            absorbed=found.chain,
            x=found.x,
            approximate=_APPROXIMATE[found.function.op_type],
        )

    def emit(self, op: RewriterContext, plan: _GeluPlan) -> Sequence[ir.Value]:
        """Make the Gelu."""
        return [
            make(
                op,
                "Gelu",
                [plan.x],
                like(plan.replaced[0]),
                attributes={"approximate": plan.approximate},
                name=plan.root.name,
            )
        ]


def _candidate(node: ir.Node) -> _Candidate | None:
    """Return the GELU-like formula that ends in `node`, `None` where there is none."""
    result = node.outputs[0]
    for function in _functions_read_by(arithmetic(result, (), depth=5)):
        argument, value = input_at(function, 0), function.outputs[0]
        for x in _operands(argument):
            inner, outer = polynomial(argument, (x,)), polynomial(result, (x, value))
            if inner and outer and _is_gate(outer):
                inside, outside = arithmetic(argument, (x,)), arithmetic(result, (x, value))
                chain = dict.fromkeys([*outside, function, *inside])
                return _Candidate(x, function, inner, outer, tuple(chain))
    return None


def _functions_read_by(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield the Erf and Tanh nodes that the arithmetic of `nodes` reads."""
    for node in nodes:
        for operand in node.inputs:
            producer = operand.producer() if operand is not None else None
            if producer is not None and not producer.domain and producer.op_type in _INNER:
                yield producer


def _operands(argument: ir.Value | None) -> Iterator[ir.Value]:
    """Yield what may be the `x` of an argument: itself, or a variable of its arithmetic."""
    if argument is None:
        return
    yield argument
    for node in arithmetic(argument, ()):
        for operand in node.inputs:
            if operand is not None and scalar(operand) is None:
                yield operand


def _is_gate(outer: Polynomial) -> bool:
    """Return whether the polynomial is `c * x * (1 + t)` for some c, but for rounding."""
    first, second = outer.get((1, 0), 0.0), outer.get((1, 1), 0.0)
    tolerance = TOLERANCES[ir.DataType.BFLOAT16]
    return len(outer) == 2 and first != 0.0 and math.isclose(first, second, rel_tol=tolerance)


def _is_part_of_another(node: ir.Node, found: _Candidate) -> bool:
    """Return whether the right formula ends in an operand of `node`, or goes on after it."""
    for operand in node.inputs:
        producer = operand.producer() if operand is not None else None
        if producer in found.chain and _candidate(producer) is not None:
            return True
    uses = node.outputs[0].uses()
    return len(uses) == 1 and all(
        use.node.op_type in ("Mul", "Div")
        and any(scalar(operand) is not None for operand in use.node.inputs)
        for use in uses
    )


def _require_opset(node: ir.Node) -> None:
    version = node.graph.opset_imports.get("") if node.graph is not None else None
    if version is None or version < OLDEST_OPSET:
        refuse(
            f"The graph of {describe_node(node)} imports opset {version or 'unknown'} of ONNX; "
            f"Gelu exists from opset {OLDEST_OPSET} on.",
            node,
        )


def _require_scalars(found: _Candidate) -> None:
    """Refuse constants like `[[2.0]]` that may give the result more axes than `x` has."""
    for node in found.chain:
        for operand in node.inputs:
            axes = rank(operand) if scalar(operand) is not None else 0
            if axes and axes > (rank(found.x) or 0):
                refuse(
                    f"A constant of {describe_node(node)} has rank {axes}; one of rank 0 is "
                    f"needed, or of at most the rank of its input, {rank(found.x)}.",
                    node,
                )


def gelu_rules() -> list[RewriteRule]:
    """Return the rules of this file, for `onnxscript.rewriter.rewrite`."""
    return [GeluFusion()]
