"""What the passes share: the scopes of a model, names in them, taking nodes out."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

GraphLike = ir.Graph | ir.Function

_GRAPH = ir.AttributeType.GRAPH
_GRAPHS = ir.AttributeType.GRAPHS

WITH_SUBGRAPHS = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""The operators of ONNX's own domain that have subgraphs; the others need not be looked at."""


def roots(model: ir.Model) -> list[GraphLike]:
    """Return the main graph and each function: what has a namespace and opset imports."""
    return [model.graph, *model.functions.values()]


def scopes(model: ir.Model) -> Iterator[GraphLike]:
    """Yield the main graph, its subgraphs, then each function and its subgraphs."""
    for root in roots(model):
        yield root
        yield from tuple(subgraphs(root))


def all_nodes(root: GraphLike) -> Iterator[ir.Node]:
    """Yield the nodes of a graph or function, each followed by those of its subgraphs.

    As `root.all_nodes()`, several times as fast where few nodes have subgraphs.
    """
    for node in root:
        yield node
        for graph in graph_attributes(node):
            yield from all_nodes(graph)


def subgraphs(root: GraphLike) -> Iterator[ir.Graph]:
    """Yield the graphs within a graph or function, each followed by those within itself."""
    for node in root:
        for graph in graph_attributes(node):
            yield graph
            yield from subgraphs(graph)


def op_counts(model: ir.Model) -> collections.Counter[str]:
    """Count the nodes of the main graph and its subgraphs by operator; function bodies not.

    Operators of other domains are qualified: `com.microsoft::GroupQueryAttention`.
    """
    counts = collections.Counter((node.domain, node.op_type) for node in all_nodes(model.graph))
    return collections.Counter(
        {qualified_name(domain, op_type): count for (domain, op_type), count in counts.items()}
    )


def qualified_name(domain: str, op_type: str) -> str:
    """Return the operator's name, with its domain unless that is ONNX's own."""
    return f"{domain}::{op_type}" if domain else op_type


def value_names(root: GraphLike) -> set[str]:
    """Return the names of all values of a graph or function and its subgraphs."""
    return {value.name for value in values_of(root) if value.name}


def values_of(root: GraphLike) -> Iterator[ir.Value]:
    """Yield what a graph or function and its subgraphs define: inputs, initializers, outputs.

    An initializer that is an input too is yielded once.
    """
    for graph in (root, *subgraphs(root)):
        yield from graph.inputs
        if isinstance(graph, ir.Graph):
            # A copy: the caller may rename, which replaces the key.
            for value in tuple(graph.initializers.values()):
                if not value.is_graph_input():
                    yield value
    for node in all_nodes(root):
        yield from node.outputs


def values_found_by_name(root: GraphLike) -> Iterator[ir.Value]:
    """Yield inputs and outputs of the subgraphs that operators of other domains carry.

    If, Loop and Scan bind theirs by position. BeamSearch of com.microsoft and the like find them
    by name, so they must keep the names that they have.
    """
    for node in all_nodes(root):
        if node.domain:
            for graph in graph_attributes(node):
                yield from graph.inputs
                yield from graph.outputs


def unique_name(preferred: str, taken: set[str]) -> str:
    """Return `preferred`, or with the first suffix `_2`, `_3`, ... not in `taken`; add it there."""
    name, count = preferred, 1
    while name in taken:
        count += 1
        name = f"{preferred}_{count}"
    taken.add(name)
    return name


def graph_attributes(node: ir.Node) -> Sequence[ir.Graph]:
    """Return the subgraphs of a node: the branches of an If, the body of a Loop or Scan."""
    if not node.domain and node.op_type not in WITH_SUBGRAPHS:
        return ()
    graphs: Sequence[ir.Graph] = ()
    # `data` is the dict itself: the views of a UserDict are several times as slow.
    for attribute in node.attributes.data.values():
        kind = attribute.type
        if kind is _GRAPH and not attribute.is_ref():
            graphs = (*graphs, attribute.as_graph())
        elif kind is _GRAPHS and not attribute.is_ref():
            graphs = (*graphs, *attribute.as_graphs())
    return graphs


def remove_nodes(graph: GraphLike, nodes: Iterable[ir.Node]) -> None:
    """Take unused nodes out of `graph`, and end every use that they and their subgraphs make.

    `Graph.remove` alone leaves the nodes of a removed If's branches as users of outer values,
    which then look used for ever. Its cost grows with the number of the graph's outputs: who
    removes many nodes detaches each and removes all at once.

    Raises:
        ValueError: If an output of a node is still used.
    """
    nodes = list(nodes)
    graph.remove(nodes, safe=True)
    for node in nodes:
        _detach_subgraphs(node)


def detach(node: ir.Node) -> None:
    """End every use that a node and its subgraphs make; it stays where it is."""
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
    _detach_subgraphs(node)


def _detach_subgraphs(node: ir.Node) -> None:
    for subgraph in graph_attributes(node):
        for inner in all_nodes(subgraph):
            for index in range(len(inner.inputs)):
                inner.replace_input_with(index, None)


def complete_type(value: ir.Value, source: ir.Value) -> None:
    """Give `value` the type and shape of `source` where it has none of its own."""
    if value.type is None:
        value.type = source.type
    if value.shape is None and source.shape is not None:
        value.shape = source.shape.copy()
