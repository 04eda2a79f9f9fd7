"""`InlineWrongCalls`: operators that the target runs, but not with these values -> their bodies."""

from __future__ import annotations

import onnx_ir as ir

from mobius.op_support import VALUES, runs_node
from mobius.stage import Target
from mobius_ir_rules.functions import FUNCTIONS
from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.passes import InlineFunctions

__all__ = ["InlineWrongCalls"]


class InlineWrongCalls(ir.passes.InPlacePass):
    """Expands the calls of an operator where the target lacks the values that one of them has.

    Fusions make no such call; a graph that was built for another target may have some.
    """

    def __init__(self, target: Target) -> None:
        """Create the pass."""
        super().__init__()
        self._target = target

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass."""
        wrong = {
            operator
            for node in model.graph.all_nodes()
            if (operator := (node.domain, node.op_type)) in VALUES
            and not runs_node(self._target, node)
        }
        if not wrong:
            return ir.passes.PassResult(model, False)
        bodies = {operator: FUNCTIONS[operator] for operator in wrong}
        AttachFunctions(bodies, overloads=True)(model)
        return InlineFunctions(lambda function: (function.domain, function.name) in wrong)(model)
