"""`EliminateIdentity`: y = Identity(x) -> x, wherever no name of the model's interface changes."""

from __future__ import annotations

import onnx_ir as ir

from mobius_ir_rules.passes.graphs import GraphLike, complete_type, remove_nodes, scopes


class EliminateIdentity(ir.passes.InPlacePass):
    """Remove `Identity` nodes of the main graph, subgraphs and functions.

    1. `y` is no output of a graph: its users read `x`.
    2. `y` is an output, and `x` is made by a node of the same graph and is no output itself: `x`
       takes name, type and shape of `y` and becomes the output.
    3. Otherwise the node stays: an output must be made in its own graph, under its own name.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass."""
        modified = False
        for graph in scopes(model):
            for node in graph:
                if (node.domain, node.op_type) == ("", "Identity"):
                    modified |= eliminate_identity(graph, node)
        return ir.passes.PassResult(model, modified)


def eliminate_identity(graph: GraphLike, node: ir.Node) -> bool:
    """Remove one Identity node of `graph` if the pass may; return whether it did."""
    source, result = node.inputs[0], node.outputs[0]
    if source is None:
        return False
    if result.is_graph_output():
        producer = source.producer()
        if producer is None or producer.graph is not node.graph or source.is_graph_output():
            return False
        result.replace_all_uses_with(source, replace_graph_outputs=True)
        source.type = result.type or source.type
        source.shape = result.shape or source.shape
        source.name = result.name
    else:
        result.replace_all_uses_with(source)
        if not source.is_graph_input():
            complete_type(source, result)
    remove_nodes(graph, [node])
    return True
