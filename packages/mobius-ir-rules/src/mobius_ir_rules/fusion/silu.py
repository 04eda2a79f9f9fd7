"""QuickGelu: `x * Sigmoid(alpha * x)`, which SiLU is with alpha 1 -> com.microsoft::QuickGelu."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext, RewriteRule

from mobius_ir_rules.fusion.polynomial import scalar
from mobius_ir_rules.rule import Plan, Rule, refuse
from mobius_ir_rules.values import (
    MICROSOFT,
    describe_node,
    input_at,
    is_binary,
    like,
    make,
    producer_of,
    rank,
)

DTYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
"""Types that QuickGelu's schema allows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _QuickGeluPlan(Plan):
    x: ir.Value
    alpha: float


class QuickGelu(Rule):
    """Fuse a sigmoid gate of its own argument.

    Before, and after:

        y = Mul(x, Sigmoid(x))                       # SiLU
        y = com.microsoft.QuickGelu <alpha = 1.0> (x)

        y = Mul(x, Sigmoid(Mul(x, 1.702)))           # QuickGelu
        y = com.microsoft.QuickGelu <alpha = 1.702> (x)

    The standard operator Swish (opset 24) has no kernel on ONNX Runtime's CPU, CUDA, WebGPU and
    DirectML providers and is expanded there to what stood before, so the rule makes QuickGelu,
    which has one on each of them: one kernel instead of two or three. `alpha` is a constant
    scalar, multiplied or divided by, on either side.
    """

    roots = (("", "Mul"),)
    emits = ((MICROSOFT, "QuickGelu"),)

    def plan(self, node: ir.Node) -> _QuickGeluPlan | None:
        """Return what to do with the product, `None` where it gates no own argument."""
        if not is_binary(node):
            return None
        for index in (0, 1):
            sigmoid, x = producer_of(node.inputs[index], "", "Sigmoid"), node.inputs[1 - index]
            if sigmoid is None or x is None:
                continue
            alpha, scaling = _factor(input_at(sigmoid, 0), x)
            if alpha is None:
                continue
            if x.dtype not in DTYPES:
                refuse(
                    f"The input of {describe_node(sigmoid)} has the type {x.dtype or 'unknown'}; "
                    "FLOAT, FLOAT16, BFLOAT16 or DOUBLE is needed.",
                    sigmoid,
                )
            _require_scalar(scaling, x)
            return _QuickGeluPlan(
                root=node,
                replaced=(node.outputs[0],),
                absorbed=(sigmoid, *scaling),
                x=x,
                alpha=alpha,
            )
        return None

    def emit(self, op: RewriterContext, plan: _QuickGeluPlan) -> Sequence[ir.Value]:
        """Make the fused node."""
        return [
            make(
                op,
                "QuickGelu",
                [plan.x],
                like(plan.replaced[0]),
                domain=MICROSOFT,
                attributes={"alpha": plan.alpha},
                name=plan.root.name,
            )
        ]


def _factor(value: ir.Value | None, x: ir.Value) -> tuple[float | None, tuple[ir.Node, ...]]:
    """Return alpha and its node where the value is `alpha * x`."""
    if value is x:
        return 1.0, ()
    node = value.producer() if value is not None else None
    if node is None or node.domain or not is_binary(node):
        return None, ()
    left, right = node.inputs
    if node.op_type == "Mul":
        for operand, other in ((left, right), (right, left)):
            if operand is x and (factor := scalar(other)) is not None:
                return factor, (node,)
    if node.op_type == "Div" and left is x and (divisor := scalar(right)):
        return 1.0 / divisor, (node,)
    return None, ()


def _require_scalar(scaling: Sequence[ir.Node], x: ir.Value) -> None:
    """Refuse constants like `[[1.702]]` that may give the result more axes than `x` has."""
    for node in scaling:
        for operand in node.inputs:
            axes = rank(operand) if operand is not x else 0
            if axes and axes > (rank(x) or 0):
                refuse(
                    f"A constant of {describe_node(node)} has rank {axes}; one of rank 0 is "
                    f"needed, or of at most the rank of its input, {rank(x)}.",
                    node,
                )


def quick_gelu_rules() -> list[RewriteRule]:
    """Return the rules of this file, for `onnxscript.rewriter.rewrite`."""
    return [QuickGelu()]
