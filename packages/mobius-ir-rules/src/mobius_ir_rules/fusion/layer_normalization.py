"""LayerNormalization: a layer norm written out in primitives -> the standard operator."""

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
)
from mobius_ir_rules.rule import Plan, Rule, refuse
from mobius_ir_rules.values import describe_node, is_binary, like, make, producer_of, rank

OLDEST_OPSET = 17
"""First opset with LayerNormalization."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LayerNormPlan(Plan):
    x: ir.Value
    scale: ir.Value
    bias: ir.Value | None
    epsilon: float


class LayerNormFusion(Rule):
    """Fuse a layer norm of primitives.

    Before:

        d = Sub(x, ReduceMean <keepdims = 1> (x, [-1]))
        s = Sqrt(Add(ReduceMean <keepdims = 1> (Pow(d, 2), [-1]), epsilon))
        y = Add(Mul(Div(d, s), weight), bias)

    After:

        y = LayerNormalization <axis = -1, epsilon, stash_type = 1> (x, weight, bias)

    The difference may be written twice, the square may be a Mul, the quotient a product with a
    reciprocal or a power, and operands come in any order; the bias may be missing. Everything is
    in float32: in float16 the operator would compute what the primitives round, so norms between
    Casts stay between them. `weight` and `bias` are `[hidden]`.
    """

    roots = (("", "Mul"), ("", "Add"))
    emits = (("", "LayerNormalization"),)

    def plan(self, node: ir.Node) -> _LayerNormPlan | None:
        """Return what to do with the last node of a layer norm, `None` where it is none."""
        if not is_binary(node):
            return None
        if node.op_type == "Mul":
            scaled = _scaled(node)
            # With a bias the Add behind is the last node.
            if scaled is None or _bias_add(node) is not None:
                return None
            return _plan(node, node, *scaled, bias=None)
        for index in (0, 1):
            product = producer_of(node.inputs[index], "", "Mul")
            if product is None or _bias_add(product) is not node:
                continue
            scaled = _scaled(product)
            if scaled is not None:
                return _plan(node, product, *scaled, bias=node.inputs[1 - index])
        return None

    def emit(self, op: RewriterContext, plan: _LayerNormPlan) -> Sequence[ir.Value]:
        """Make the norm."""
        return [
            make(
                op,
                "LayerNormalization",
                [plan.x, plan.scale, plan.bias],
                like(plan.replaced[0]),
                attributes={"axis": -1, "epsilon": plan.epsilon, "stash_type": 1},
                name=plan.root.name,
            )
        ]


def _scaled(product: ir.Node) -> tuple[Normalized, ir.Value] | None:
    """Return the normalised value and the weight of `normalised * weight`."""
    if not is_binary(product):
        return None
    for index in (0, 1):
        found, weight = normalized(product.inputs[index]), product.inputs[1 - index]
        if found is not None and found.centred and weight is not None:
            return found, weight
    return None


def _bias_add(product: ir.Node) -> ir.Node | None:
    """Return the Add of a vector that is all that reads the product."""
    uses = product.outputs[0].uses()
    if len(uses) != 1 or product.outputs[0].is_graph_output():
        return None
    (use,) = uses
    add = use.node
    if (add.domain, add.op_type) != ("", "Add") or add.graph is not product.graph:
        return None
    return add if is_binary(add) and rank(add.inputs[1 - use.idx]) == 1 else None


def _plan(
    node: ir.Node, product: ir.Node, found: Normalized, scale: ir.Value, bias: ir.Value | None
) -> _LayerNormPlan:
    epsilon = require_last_axis(found)
    x = found.x
    if x.dtype != ir.DataType.FLOAT:
        refuse(
            f"The norm that {describe_node(node)} ends is computed in {x.dtype or 'unknown'}; "
            "FLOAT is needed, because that is what LayerNormalization computes in.",
            node,
        )
    for value, what in ((scale, "weight"), (bias, "bias")):
        if value is None:
            continue
        if value.dtype != x.dtype:
            refuse(
                f"The {what} of {describe_node(node)} has the type {value.dtype or 'unknown'}; "
                f"that of the normalised value, {x.dtype}, is needed.",
                node,
            )
        require_hidden(value, what, x, node)
    require_opset(node, "LayerNormalization", OLDEST_OPSET)
    return _LayerNormPlan(
        root=node,
        replaced=(node.outputs[0],),
        absorbed=(product, *found.nodes) if product is not node else found.nodes,
        x=x,
        scale=scale,
        bias=bias,
        epsilon=epsilon,
    )


def layer_normalization_rules() -> list[RewriteRule]:
    """Return the rules of this file, for `onnxscript.rewriter.rewrite`."""
    return [LayerNormFusion()]
