"""GroupedHeads: Attention of repeated key and value heads -> Attention of the heads themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.fusion._head_layout import repeated_heads
from mobius_ir_rules.rule import Plan, Rule, refuse
from mobius_ir_rules.values import describe_node, input_at, like, make, rank


@dataclasses.dataclass(frozen=True, kw_only=True)
class _GroupedPlan(Plan):
    inputs: tuple[ir.Value | None, ...]


class GroupedHeads(Rule):
    """Give Attention the heads of key and value once, where they are repeated for the query's.

    Before:

        k4 = Reshape(Expand(Unsqueeze(k, [2]), [B, 2, 2, T, D]), [B, 4, T, D])
        v4 = ... of v
        y = Attention(q, k4, v4, mask)

    After:

        y = Attention(q, k, v, mask)

    Query head `h` reads key head `h / copies`, which is how the operator pairs them.
    """

    roots = (("", "Attention"),)
    emits = (("", "Attention"),)

    def plan(self, node: ir.Node) -> _GroupedPlan | None:
        """Return what to do with the node, `None` where nothing is repeated."""
        key, value = input_at(node, 1), input_at(node, 2)
        if key is None or value is None or rank(key) != 4 or rank(value) != 4:
            return None
        grouped_key, copies, of_key = repeated_heads(key)
        grouped_value, other_copies, of_value = repeated_heads(value)
        if copies == other_copies == 1:
            return None
        if copies != other_copies:
            refuse(
                f"{describe_node(node)} has key heads {copies} times and value heads "
                f"{other_copies} times; equal numbers are needed.",
                node,
            )
        if any(input_at(node, index) is not None for index in (4, 5)) or len(node.outputs) > 1:
            refuse(
                f"{describe_node(node)} has a past or present, whose heads are repeated too; none "
                "is needed.",
                node,
            )
        inputs = (node.inputs[0], grouped_key, grouped_value, *node.inputs[3:])
        return _GroupedPlan(
            root=node,
            replaced=(node.outputs[0],),
            absorbed=(*of_key, *of_value),
            inputs=inputs,
        )

    def emit(self, op: RewriterContext, plan: _GroupedPlan) -> Sequence[ir.Value]:
        """Make the same node with other inputs."""
        return [
            make(
                op,
                "Attention",
                plan.inputs,
                like(plan.replaced[0]),
                attributes=dict(plan.root.attributes),
                name=plan.root.name,
            )
        ]
