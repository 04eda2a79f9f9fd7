"""RMSNormalization: an RMS norm written out in primitives -> the standard operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext, RewriteRule

from mobius_ir_rules.fusion._normalized import (
    Normalized,
    normalized,
    require_hidden,
    require_last_axis,
    require_opset,
    through_cast,
)
from mobius_ir_rules.rule import Plan, Rule, refuse
from mobius_ir_rules.values import describe_node, input_at, is_binary, like, make, producer_of

OLDEST_OPSET = 23
"""First opset with RMSNormalization."""

_NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _RMSNormPlan(Plan):
    x: ir.Value
    scale: ir.Value
    epsilon: float


class RMSNormFusion(Rule):
    """Fuse an RMS norm of primitives.

    Before:

        r = Reciprocal(Sqrt(Add(ReduceMean <keepdims = 1> (Pow(x, 2), [-1]), epsilon)))
        y = Mul(weight, Mul(x, r))

    After:

        y = RMSNormalization <axis = -1, epsilon, stash_type = 1> (x, weight)

    The square may be a Mul, the quotient a Div, by a Sqrt or a power, and operands come in any
    order. In float16 and bfloat16 the mean must be computed in float32, between two Casts; a
    weight multiplied after the second Cast is that of an operator on the narrow type, and the
    Casts go. A weight multiplied in float32, before the Cast back, keeps the operator in float32
    between the Casts, so that no number is rounded that was not rounded before. An offset norm,
    `x * (1 + w)`, is one whose weight is computed. `weight` is `[hidden]`.
    """

    roots = (("", "Mul"),)
    emits = (("", "RMSNormalization"),)

    def plan(self, node: ir.Node) -> _RMSNormPlan | None:
        """Return what to do with the product, `None` where it ends no RMS norm."""
        if not is_binary(node):
            return None
        for index in (0, 1):
            inner, casts = through_cast(node.inputs[index])
            found = normalized(inner)
            if found is None or found.centred:
                continue
            return _plan(node, found, casts, node.inputs[1 - index])
        return None

    def emit(self, op: RewriterContext, plan: _RMSNormPlan) -> Sequence[ir.Value]:
        """Make the norm."""
        return [
            make(
                op,
                "RMSNormalization",
                [plan.x, plan.scale],
                like(plan.replaced[0]),
                attributes={"axis": -1, "epsilon": plan.epsilon, "stash_type": 1},
                name=plan.root.name,
            )
        ]


def _plan(
    node: ir.Node, found: Normalized, casts: tuple[ir.Node, ...], scale: ir.Value | None
) -> _RMSNormPlan:
    assert scale is not None
    epsilon = require_last_axis(found)
    x = found.x
    widened: tuple[ir.Node, ...] = ()
    if casts:
        x, widened = _narrow_input(found, casts[0])
    dtype = x.dtype
    if dtype != ir.DataType.FLOAT and not casts:
        refuse(
            f"The norm that {describe_node(node)} ends is computed in {dtype or 'unknown'}; FLOAT "
            "is needed, because that is what RMSNormalization computes in.",
            node,
        )
    if scale.dtype != dtype:
        refuse(
            f"The weight of {describe_node(node)} has the type {scale.dtype or 'unknown'}; that "
            f"of the normalised value, {dtype}, is needed.",
            node,
        )
    require_hidden(scale, "weight", x, node)
    require_opset(node, "RMSNormalization", OLDEST_OPSET)
    return _RMSNormPlan(
        root=node,
        replaced=(node.outputs[0],),
        absorbed=(*casts, *found.nodes, *widened),
        x=x,
        scale=scale,
        epsilon=epsilon,
    )


def _narrow_input(found: Normalized, back: ir.Node) -> tuple[ir.Value, tuple[ir.Node, ...]]:
    """Return the value before the Cast to float32, of the type that `back` goes back to."""
    wide = producer_of(found.x, "", "Cast")
    x = input_at(wide, 0) if wide is not None else None
    target = back.outputs[0].dtype
    if (
        wide is None
        or x is None
        or x.dtype not in _NARROW
        or target != x.dtype
        or found.x.dtype != ir.DataType.FLOAT
    ):
        source = "unknown" if x is None else str(x.dtype)
        refuse(
            f"{describe_node(back)} casts to {target or 'unknown'} a norm of {source} computed in "
            f"{found.x.dtype or 'unknown'}; a norm of FLOAT16 or BFLOAT16, computed in FLOAT and "
            "cast back, is needed.",
            back,
        )
    return x, (wide,)


def rms_normalization_rules() -> list[RewriteRule]:
    """Return the rules of this file, for `onnxscript.rewriter.rewrite`."""
    return [RMSNormFusion()]
