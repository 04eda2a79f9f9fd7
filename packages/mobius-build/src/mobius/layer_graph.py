"""One layer of a model as a small graph to be drawn: `pick_layer`, then `layer_graph`.

Layers are told apart by the numbers in names (`model/layers.3/mlp/MatMul`), of nodes or of the
weights that they read. Nothing but a picture depends on it.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterator

import onnx_ir as ir

__all__ = ["Layer", "LayerGraph", "LayerNode", "layer_graph", "pick_layer"]

_NUMBERED = re.compile(r"^[./]*(.*?)[./](\d+)(?=[./])")
_BEFORE_ALL = -1


@dataclasses.dataclass(frozen=True)
class Layer:
    """Which layer: `Layer("model.layers", 3)`.

    Attributes:
        prefix: The part of the names in front of the number, its parts joined by dots.
        number: The number.
    """

    prefix: str
    number: int

    def __str__(self) -> str:
        """Return the layer as names have it."""
        return f"{self.prefix}.{self.number}"


@dataclasses.dataclass(frozen=True)
class LayerNode:
    """One node of a layer.

    Attributes:
        name: The node's name.
        op_type: Its operator, with the domain unless that is ONNX's own.
        inputs: Indices of the nodes of the layer that it reads, each once.
        reads: Names of the values from outside of the layer that it reads, weights left out.
        writes: Names of its outputs that something outside of the layer reads.
    """

    name: str
    op_type: str
    inputs: tuple[int, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class LayerGraph:
    """The nodes of one layer, in graph order.

    Attributes:
        layer: Which one.
        nodes: Its nodes.
    """

    layer: Layer
    nodes: tuple[LayerNode, ...]


def pick_layer(model: ir.Model) -> Layer | None:
    """Return a layer from the middle of a model, where both neighbours are layers too.

    `None` if no names are numbered.
    """
    numbers: dict[str, set[int]] = collections.defaultdict(set)
    for node in model.graph:
        found = _layer_of(node)
        if found is not None:
            numbers[found.prefix].add(found.number)
    if not numbers:
        return None
    # The first of those with the most numbers: experts of a layer are numbered after the layer.
    prefix = max(numbers, key=lambda each: len(numbers[each]))
    ordered = sorted(numbers[prefix])
    return Layer(prefix, ordered[(len(ordered) - 1) // 2])


def layer_graph(model: ir.Model, layer: Layer) -> LayerGraph | None:
    """Return the nodes of `layer`; `None` if there are none.

    A node belongs to the layer that it is named after or depends on, whichever is later.
    """
    levels: dict[ir.Node, int] = {}
    for node in model.graph:
        found = _layer_of(node)
        own = found.number if found is not None and found.prefix == layer.prefix else _BEFORE_ALL
        producers = (value.producer() for value in node.inputs if value is not None)
        # The name does not decide alone: layers may share a weight that is named after the first.
        # In a graph that is not sorted a producer may come later; the picture lacks it then.
        inputs = (levels.get(each, _BEFORE_ALL) for each in producers if each is not None)
        levels[node] = max(own, *inputs, _BEFORE_ALL)
    # A node without inputs of its own level, such as a constant, goes where it is used.
    for node in reversed(list(model.graph)):
        if levels[node] == _BEFORE_ALL and not any(_computed_inputs(node)):
            users = {
                levels[use.node] for out in node.outputs for use in out.uses() if use.node in levels
            }
            if len(users) == 1:
                levels[node] = users.pop()
    members = [node for node in model.graph if levels[node] == layer.number]
    if not members:
        return None
    index = {node: position for position, node in enumerate(members)}
    return LayerGraph(layer, tuple(_describe(node, index) for node in members))


def _describe(node: ir.Node, index: dict[ir.Node, int]) -> LayerNode:
    inner: dict[int, None] = {}
    reads: dict[str, None] = {}
    for value in _computed_inputs(node):
        producer = value.producer()
        if producer is not None and producer in index:
            inner[index[producer]] = None
        else:
            reads[str(value.name)] = None
    writes = [
        str(value.name)
        for value in node.outputs
        if value.is_graph_output() or any(use.node not in index for use in value.uses())
    ]
    op_type = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    return LayerNode(node.name or "", op_type, tuple(inner), tuple(reads), tuple(writes))


def _computed_inputs(node: ir.Node) -> Iterator[ir.Value]:
    """Return the inputs that are not weights."""
    for value in node.inputs:
        if value is not None and not value.is_initializer():
            yield value


def _layer_of(node: ir.Node) -> Layer | None:
    names = [node.name, *(v.name for v in node.inputs if v is not None and v.is_initializer())]
    for name in names:
        match = _NUMBERED.match(name or "")
        if match is not None:
            return Layer(match[1].replace("/", "."), int(match[2]))
    return None
