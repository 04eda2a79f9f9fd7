"""RepeatingBuilder: the graph is that of onnxscript's own builder, to the last name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript import GraphBuilder, OpBuilder, nn

from mobius.repeating_builder import RepeatingBuilder
from mobius_components import Parameter


class Layer(nn.Module):
    """Everything that makes two nodes different, twice over."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.weight = Parameter([8, 4])
        self.other = Parameter([4, 4])

    def forward(self, op: OpBuilder, x: ir.Value) -> Any:
        for weight in (self.weight, self.other):
            y = op.MatMul(x, op.Transpose(weight, perm=[1, 0]))
        y = op.Add(op.Mul(y, 0.0), op.Mul(y, -0.0))
        y = op.Add(op.Mul(y, 2), op.Mul(2.0, y))
        y = op.Clip(y, None, 3.0)
        y = op.Clip(y, -3.0)
        first, second = op.Split(y, axis=-1, num_outputs=2, _outputs=2)
        y = op.Concat(first, second, axis=-1)
        y = op.Reshape(y, [0, 0, 2, 2])
        y = op.Reshape(y, op.Constant(value_ints=[0, 0, 4]))
        y = op.LeakyRelu(y, alpha=0.5)
        y = op.LeakyRelu(y, alpha=1)
        return op.Identity(op.Unknown(y, _domain="test"), _name="named")


def untyped(op: OpBuilder, x: ir.Value) -> Any:
    """A number beside a value of unknown type is cast when the graph runs."""
    unknown = op.Unknown(x, _domain="test")
    return op.Add(op.Add(unknown, 1.0), op.Add(unknown, 1.0))


def constants(op: OpBuilder, x: ir.Value) -> Any:
    """Equal shapes, and equal forms but for the data that inference reads."""
    two, three = (
        op.initializer(ir.tensor(np.array([1, size, 4], np.int64)), name=f"size{size}")
        for size in (2, 3)
    )
    return [op.Expand(x, two), op.Expand(x, three), op.Expand(x, two)]


def layers(op: OpBuilder, x: ir.Value) -> Any:
    for number in range(3):
        x = Layer(f"layers.{number}")(op, x)
        x.type, x.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["batch", 1, 4])
    return x


def trace(kind: type[GraphBuilder], body: Callable[[OpBuilder, ir.Value], Any]) -> ir.Graph:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 24, "test": 1})
    builder = kind(graph)
    x = builder.input("x", ir.DataType.FLOAT, ["batch", 1, 4])
    made = body(builder.op, x)
    graph.outputs.extend(made if isinstance(made, list) else [made])
    return graph


def described(graph: ir.Graph) -> list[Any]:
    return [
        [
            (node.name, node.op_identifier(), node.version, dict(node.metadata_props)),
            [value and (value.name, value.is_initializer()) for value in node.inputs],
            {name: (attr.type, repr(attr.value)) for name, attr in node.attributes.items()},
            [(value.name, value.type, value.shape) for value in node.outputs],
        ]
        for node in graph
    ] + [list(graph.initializers), [value.name for value in graph.outputs]]


@pytest.mark.parametrize("body", [layers, untyped, constants])
def test_same_graph_as_the_plain_builder(body: Callable[..., Any]) -> None:
    assert described(trace(RepeatingBuilder, body)) == described(trace(GraphBuilder, body))


def test_nodes_share_no_shape() -> None:
    graph = trace(RepeatingBuilder, lambda op, x: [op.Neg(x), op.Neg(x), op.Neg(x)])
    shapes = [node.outputs[0].shape for node in graph]
    assert len({id(shape) for shape in shapes}) == 3
    shapes[1][0] = 7
    assert [str(shape) for shape in shapes] == ["[batch,1,4]", "[7,1,4]", "[batch,1,4]"]


def test_errors_are_those_of_the_builder() -> None:
    for _ in range(2):
        with pytest.raises(TypeError, match="Unexpected keyword arguments"):
            trace(RepeatingBuilder, lambda op, x: op.Neg(x, axis=1))
