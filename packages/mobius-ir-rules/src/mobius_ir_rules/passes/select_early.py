"""`SelectEarly`: what is computed for all rows and then chosen from -> chosen from, then computed.

**Before**

```
y = Add (x, MatMul (h, w))
z = GatherND <batch_dims = 1> (y, index)          # one row of each batch
```

**After**

```
z = Add (GatherND (x, index), MatMul (GatherND (h, index), w))
```

A decoder that needs the logits of the last token only chooses its states before the head. The last
layer's feed-forward, and whatever else makes a row of its result from the same row alone, need not
be computed for the others either. Attention, which reads all rows, is where it ends.
"""

from __future__ import annotations

import heapq

import onnx_ir as ir

from mobius_ir_rules.values import int_attribute, is_used, rank

# Each row of the result is made from the same row of every input that has rows.
_ELEMENTWISE = frozenset(
    {
        "Abs",
        "Add",
        "Cast",
        "Clip",
        "Div",
        "Erf",
        "Exp",
        "Gelu",
        "Identity",
        "Max",
        "Min",
        "Mul",
        "Neg",
        "Pow",
        "Relu",
        "Sigmoid",
        "Softplus",
        "Sqrt",
        "Sub",
        "Swish",
        "Tanh",
    }
)
_NORMS = frozenset({"LayerNormalization", "RMSNormalization"})
_ROWS = 1  # the axis that is chosen from

Rows = tuple[int | ir.SymbolicDim, ...]
"""Sizes of the first axes of what has rows: the batch, and the rows."""


class SelectEarly(ir.passes.InPlacePass):
    """Move `GatherND(x, index, batch_dims=1)` with one index for each batch as far up as it goes.

    A node moves behind it if it works on each row alone, and if nothing but nodes that move uses
    what it makes. Shapes have to be inferred: a value without one stops it. Works on the main
    graph, the only one in which a decoder chooses.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass."""
        moved = [_select_early(model.graph, node) for node in tuple(model.graph) if _selects(node)]
        if any(moved):
            model.graph.sort()
        return ir.passes.PassResult(model, any(moved))


def _selects(node: ir.Node) -> bool:
    """Return whether `node` chooses one row of each batch of a `[B, S, width]`."""
    if (node.domain, node.op_type) != ("", "GatherND") or int_attribute(node, "batch_dims", 0) != 1:
        return False
    data, index = node.inputs
    return (
        rank(data) == 3
        and index is not None
        and index.shape is not None
        and list(index.shape[1:]) == [1, 1]
    )


def _select_early(graph: ir.Graph, selection: ir.Node) -> bool:
    data, index = selection.inputs
    assert data is not None
    assert data.shape is not None  # or it would not select
    rows = data.shape[: _ROWS + 1]
    if rows[_ROWS] == 1 or any(isinstance(d, ir.SymbolicDim) and d.value is None for d in rows):
        return False
    moving = _moving(graph, selection, data, rows)
    if not moving:
        return False
    chosen: dict[ir.Value, ir.Value] = {}
    for node in moving:
        for position, value in enumerate(node.inputs):
            if value is None or not _has_rows(value, rows) or value.producer() in moving:
                continue
            if value not in chosen:
                chosen[value] = _choose(graph, selection, value, index)
            node.replace_input_with(position, chosen[value])
    for node in moving:
        for output in node.outputs:
            if output.shape is not None:
                output.shape = _one_row(output.shape)
    output = selection.outputs[0]
    name = output.name if output.is_graph_output() else data.name
    output.replace_all_uses_with(data, replace_graph_outputs=True)
    graph.remove(selection, safe=True)
    data.name = name
    return True


def _moving(graph: ir.Graph, selection: ir.Node, data: ir.Value, rows: Rows) -> dict[ir.Node, None]:
    """Return the nodes that can work on the chosen rows alone, the last one first."""
    order = {node: -place for place, node in enumerate(graph)}  # the smallest is the last
    moving: dict[ir.Node, None] = {}
    waiting = [order[node] for node in [data.producer()] if node in order]
    by_place = {place: node for node, place in order.items()}
    seen = set(waiting)
    while waiting:
        node = by_place[heapq.heappop(waiting)]
        # Users come after what they use, so that each of them has been decided about.
        if not _is_by_row(node, rows) or not _is_used_only_by(node, {selection, *moving}):
            continue
        moving[node] = None
        for value in node.inputs:
            producer = None if value is None or not _has_rows(value, rows) else value.producer()
            if producer in order and order[producer] not in seen:
                seen.add(order[producer])
                heapq.heappush(waiting, order[producer])
    return moving


def _is_used_only_by(node: ir.Node, users: set[ir.Node]) -> bool:
    return all(
        not output.is_graph_output() and all(user in users for user, _ in output.uses())
        for output in node.outputs
    )


def _is_by_row(node: ir.Node, rows: Rows) -> bool:
    """Return whether each row of the node's one result is made from that row of its inputs."""
    if node.domain != "" or not _has_rows(node.outputs[0], rows):
        return False
    if any(map(is_used, node.outputs[1:])):
        return False
    first, *others = node.inputs
    if node.op_type in _ELEMENTWISE:
        return all(
            value is None or _has_rows(value, rows) or _is_same_for_all_rows(value)
            for value in node.inputs
        )
    if node.op_type in _NORMS:
        last = int_attribute(node, "axis", -1) in (-1, 2)
        alike = all(value is None or rank(value) == 1 for value in others)
        return last and alike and first is not None and _has_rows(first, rows)
    if node.op_type == "MatMul":
        return first is not None and _has_rows(first, rows) and rank(others[0]) == 2
    return False


def _has_rows(value: ir.Value, rows: Rows) -> bool:
    return rank(value) == 3 and value.shape is not None and value.shape[: _ROWS + 1] == rows


def _is_same_for_all_rows(value: ir.Value) -> bool:
    """Return whether `value` is broadcast over rows."""
    if value.shape is None:
        return False
    return len(value.shape) < 2 or value.shape[-2] == 1


def _choose(
    graph: ir.Graph, selection: ir.Node, value: ir.Value, index: ir.Value | None
) -> ir.Value:
    assert value.shape is not None  # it has rows
    name = f"{value.name}_selected"
    chosen = ir.Value(name=name, type=value.type, shape=_one_row(value.shape))
    node = ir.node(
        "GatherND", [value, index], {"batch_dims": 1}, outputs=[chosen], name=f"{name}_node"
    )
    graph.insert_before(selection, node)
    return chosen


def _one_row(shape: ir.Shape) -> ir.Shape:
    return ir.Shape([dim if axis != _ROWS else 1 for axis, dim in enumerate(shape)])
