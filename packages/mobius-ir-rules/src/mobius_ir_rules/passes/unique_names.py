"""Names of values and nodes: any model -> no name twice in a graph, its subgraphs or a function."""

from __future__ import annotations

import onnx_ir as ir

from mobius_ir_rules.passes.graphs import (
    GraphLike,
    all_nodes,
    roots,
    unique_name,
    values_found_by_name,
    values_of,
)


def make_names_unique(model: ir.Model) -> bool:
    """Rename values and nodes whose names occur twice, or that have none.

    Names are compared across the main graph with all its subgraphs, and within each function with
    its subgraphs. Inputs, outputs and initializers of the main graph and formal parameters of
    functions keep their names, and so do inputs and outputs of subgraphs of operators that are not
    ONNX's own. Omitted outputs ("") stay omitted.

    Returns:
        Whether a name changed.
    """
    return any([_make_unique(root) for root in roots(model)])


def _make_unique(root: GraphLike) -> bool:
    fixed = [*root.inputs, *root.outputs]
    if isinstance(root, ir.Graph):
        fixed += root.initializers.values()
    fixed += values_found_by_name(root)
    keep = {id(value) for value in fixed}
    taken = {value.name for value in fixed if value.name}
    modified = False
    for value in values_of(root):
        if id(value) in keep or value.name == "":
            continue
        name = unique_name(value.name or "value", taken)
        if name != value.name:
            value.name = name
            modified = True
    used: set[str] = set()
    for node in all_nodes(root):
        name = unique_name(node.name or node.op_type, used)
        if name != node.name:
            node.name = name
            modified = True
    return modified
