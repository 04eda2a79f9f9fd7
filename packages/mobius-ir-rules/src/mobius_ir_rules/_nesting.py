"""A model in, the same computation out as the branch of an `If` or as a function's body."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir


def in_branch(model: ir.Model) -> ir.Model:
    """Return a model with an `If` whose branch holds the graph; weights stay outside.

    The branch reads the graph inputs and the weights from the enclosing graph. Inputs and outputs
    are named as before; the condition is always true, and the other branch makes zeros.
    """
    source = model.graph
    outer: dict[ir.Value, ir.Value] = {value: _copy(value) for value in source.inputs}
    weights = [value for value in source.initializers.values() if value not in outer]
    outer.update((weight, _copy(weight)) for weight in weights)
    condition = _constant(True, "condition")
    taken = _branch(source, outer)
    outputs = [_copy(value) for value in source.outputs]
    choice = ir.Node(
        "",
        "If",
        condition.outputs,
        [ir.AttrGraph("then_branch", taken), ir.AttrGraph("else_branch", _zeros(source))],
        outputs=outputs,
        name="choice",
    )
    graph = ir.Graph(
        [outer[value] for value in source.inputs],
        outputs,
        nodes=[condition, choice],
        initializers=[outer[weight] for weight in weights],
        opset_imports=dict(source.opset_imports),
        name="outside",
    )
    return _model(model, graph)


def in_function(model: ir.Model) -> ir.Model:
    """Return a model that calls a model-local function with the graph as its body.

    A function has no initializers: weights become inputs of the function.
    """
    source = model.graph
    weights = [value for value in source.initializers.values() if value not in source.inputs]
    read = [*source.inputs, *weights]
    outer = {value: _copy(value) for value in read}
    inner = {value: ir.Value(name=value.name) for value in read}
    nodes = _copy_nodes(source, inner)
    body = ir.Graph(
        [inner[value] for value in read],
        [inner[value] for value in source.outputs],
        nodes=nodes,
        opset_imports=dict(source.opset_imports),
        name="body",
    )
    function = ir.Function("mobius.testing", "Body", "", graph=body, attributes=())
    outputs = [_copy(value) for value in source.outputs]
    call = ir.Node(
        "mobius.testing", "Body", [outer[value] for value in read], outputs=outputs, name="call"
    )
    graph = ir.Graph(
        [outer[value] for value in source.inputs],
        outputs,
        nodes=[call],
        initializers=[outer[weight] for weight in weights],
        opset_imports={**source.opset_imports, "mobius.testing": 1},
        name="outside",
    )
    nested = _model(model, graph)
    nested.functions[function.identifier()] = function
    return nested


def _branch(source: ir.Graph, outer: dict[ir.Value, ir.Value]) -> ir.Graph:
    values = dict(outer)
    nodes = _copy_nodes(source, values, "then/")
    return ir.Graph(
        [],
        [values[value] for value in source.outputs],
        nodes=nodes,
        opset_imports=dict(source.opset_imports),
        name="then",
    )


def _zeros(source: ir.Graph) -> ir.Graph:
    """Return a branch with the outputs' element types; their shapes do not matter."""
    nodes: list[ir.Node] = []
    outputs: list[ir.Value] = []
    for value in source.outputs:
        zero = _constant(0.0, f"else/zero/{value.name}")
        cast = ir.Node(
            "",
            "Cast",
            zero.outputs,
            [ir.AttrInt64("to", ir.DataType.UNDEFINED if value.dtype is None else value.dtype)],
            outputs=[ir.Value(name=f"else/{value.name}", type=value.type)],
        )
        nodes += [zero, cast]
        outputs += cast.outputs
    return ir.Graph([], outputs, nodes=nodes, opset_imports=dict(source.opset_imports), name="else")


def _constant(number: float | bool, name: str) -> ir.Node:
    # Named, because graphs name values without looking into each other.
    attribute = ir.AttrTensor("value", ir.tensor(number))
    return ir.Node("", "Constant", [], [attribute], outputs=[ir.Value(name=name)], name=name)


def _copy_nodes(
    source: ir.Graph, values: dict[ir.Value, ir.Value], prefix: str = ""
) -> Sequence[ir.Node]:
    """Copy the nodes; `values` maps what they read and is extended by what they make."""
    nodes = []
    for node in source:
        if any(attr.type in _GRAPHS for attr in node.attributes.values()):
            raise ValueError(
                f"The node {node.name!r} has a subgraph: set nested=False for such a case."
            )
        outputs = [_copy(value, prefix) for value in node.outputs]
        values.update(zip(node.outputs, outputs, strict=True))
        nodes.append(
            ir.Node(
                node.domain,
                node.op_type,
                [None if value is None else values[value] for value in node.inputs],
                list(node.attributes.values()),
                overload=node.overload,
                outputs=outputs,
                name=f"{prefix}{node.name}" if node.name else None,
            )
        )
    return nodes


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _copy(value: ir.Value, prefix: str = "") -> ir.Value:
    return ir.Value(
        name=f"{prefix}{value.name}" if value.name else value.name,
        type=value.type,
        shape=None if value.shape is None else ir.Shape(value.shape),
        const_value=value.const_value if value.is_initializer() else None,
    )


def _model(source: ir.Model, graph: ir.Graph) -> ir.Model:
    return ir.Model(
        graph,
        ir_version=source.ir_version,
        functions=[function.clone() for function in source.functions.values()],
    )
