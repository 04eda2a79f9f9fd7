"""`RemoveUnused`: nodes, initializers, functions and opset imports that nothing needs -> gone."""

from __future__ import annotations

import onnx_ir as ir

from mobius_ir_rules.passes.graphs import (
    GraphLike,
    all_nodes,
    detach,
    graph_attributes,
    roots,
)


class RemoveUnused(ir.passes.InPlacePass):
    """Remove what does not contribute to an output, in the graph, subgraphs and functions.

    Opset imports are exact afterwards: those of a graph or function name the domains of its
    nodes and the default domain; those of the model also the domains of its functions. An import
    that is missing is not added. Unused outputs of nodes that stay are left as they are: kernels
    tell by an output's presence what to compute (ONNX Runtime refuses an `Attention` with
    `past_key` and without `present_key`).
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass."""
        modified = _remove_functions(model)
        modified |= _remove_dead(model.graph)
        for function in model.functions.values():
            modified |= _remove_dead(function)
        # A dead node may have been the last caller.
        modified |= _remove_functions(model)
        modified |= _remove_imports(model)
        return ir.passes.PassResult(model, modified)


def _remove_dead(graph: GraphLike) -> bool:
    modified = False
    dead: list[ir.Node] = []
    for node in reversed(graph):
        if any(output.is_graph_output() or output.uses() for output in node.outputs):
            for subgraph in graph_attributes(node):
                modified |= _remove_dead(subgraph)
        else:
            detach(node)
            dead.append(node)
    if dead:
        graph.remove(dead)
        modified = True
    if isinstance(graph, ir.Graph):
        for name, value in tuple(graph.initializers.items()):
            if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
                del graph.initializers[name]
                modified = True
    return modified


def _remove_functions(model: ir.Model) -> bool:
    if not model.functions:
        return False
    used: set[ir.OperatorIdentifier] = set()
    pending: list[GraphLike] = [model.graph]
    while pending:
        for node in all_nodes(pending.pop()):
            identifier = node.op_identifier()
            if identifier in model.functions and identifier not in used:
                used.add(identifier)
                pending.append(model.functions[identifier])
    unused = [identifier for identifier in model.functions if identifier not in used]
    for identifier in unused:
        del model.functions[identifier]
    return bool(unused)


def _remove_imports(model: ir.Model) -> bool:
    modified = False
    for graph in roots(model):
        used = used_domains(graph) | {""}
        if graph is model.graph:
            used |= {function.domain for function in model.functions.values()}
        for domain in [domain for domain in graph.opset_imports if domain not in used]:
            del graph.opset_imports[domain]
            modified = True
    return modified


def used_domains(graph: GraphLike) -> set[str]:
    """Return the domains of the nodes of a graph or function and its subgraphs."""
    return {node.domain for node in all_nodes(graph)}
