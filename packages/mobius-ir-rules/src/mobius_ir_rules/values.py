"""Questions that rules ask about nodes and values, and `make`, which makes one typed node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.rule import refuse

MICROSOFT = "com.microsoft"

Declaration = tuple[
    ir.DataType | None, ir.Shape | Sequence[int | str | ir.SymbolicDim | None] | None
]
"""Element type and shape that a new value is declared with."""


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """Return the input, `None` where it is omitted in the middle or at the end."""
    return node.inputs[index] if index < len(node.inputs) else None


def output_at(node: ir.Node, index: int) -> ir.Value | None:
    """Return the output, `None` where the node has fewer or its name is empty."""
    value = node.outputs[index] if index < len(node.outputs) else None
    # An omitted output reads as an unused value with an empty name.
    return None if value is None or value.name == "" else value


def is_binary(node: ir.Node) -> bool:
    """Return whether the node has two inputs, neither omitted."""
    return len(node.inputs) == 2 and None not in node.inputs


def is_used(value: ir.Value | None) -> bool:
    """Return whether a node reads the value or it leaves the graph."""
    return value is not None and (bool(value.uses()) or value.is_graph_output())


def producer_of(value: ir.Value | None, domain: str, op_type: str) -> ir.Node | None:
    """Return the node that makes `value`, if it is this operator's."""
    node = value.producer() if value is not None else None
    return node if node is not None and (node.domain, node.op_type) == (domain, op_type) else None


def static_dim(value: ir.Value | None, axis: int) -> int | None:
    """Return the size of the axis, `None` where rank or size is not known."""
    if value is None or value.shape is None or not -len(value.shape) <= axis < len(value.shape):
        return None
    dim = value.shape[axis]
    return dim if isinstance(dim, int) else None


def rank(value: ir.Value | None) -> int | None:
    """Return the number of axes, `None` where it is not known."""
    return None if value is None or value.shape is None else len(value.shape)


def is_weight(value: ir.Value | None) -> bool:
    """Return whether the value is an initializer that no caller can replace (data or not)."""
    return value is not None and value.is_initializer() and not value.is_graph_input()


def int_attribute(node: ir.Node, name: str, default: int) -> int:
    """Return the attribute's value; refuse where a function's caller decides it.

    Raises:
        RefusedError: When the attribute is a reference to one of the enclosing function.
    """
    attribute = _attribute(node, name)
    return default if attribute is None else attribute.as_int()


def float_attribute(node: ir.Node, name: str, default: float) -> float:
    """Return the attribute's value; refuse where a function's caller decides it.

    Raises:
        RefusedError: When the attribute is a reference to one of the enclosing function.
    """
    attribute = _attribute(node, name)
    return default if attribute is None else attribute.as_float()


def string_attribute(node: ir.Node, name: str, default: str) -> str:
    """Return the attribute's value; refuse where a function's caller decides it.

    Raises:
        RefusedError: When the attribute is a reference to one of the enclosing function.
    """
    attribute = _attribute(node, name)
    return default if attribute is None else attribute.as_string()


def _attribute(node: ir.Node, name: str) -> ir.Attr | None:
    attribute = node.attributes.get(name)
    if attribute is not None and attribute.is_ref():
        refuse(
            f"The attribute '{name}' of {describe_node(node)} refers to an attribute of the "
            "enclosing function; a value that is known here is needed.",
            node,
        )
    return attribute


def describe_node(node: ir.Node) -> str:
    """Return words for a reason: `Attention (node 'layers.3/Attention')`."""
    operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    return f"{operator} (node '{node_name(node)}')"


def node_name(node: ir.Node) -> str:
    """Return the node's name; where it has none, the name of its first named output."""
    names = [node.name, *(output.name for output in node.outputs)]
    return next((name for name in names if name), "")


def describe_value(value: ir.Value | None) -> str:
    """Return words for a reason, saying where the value comes from."""
    if value is None:
        return "absent"
    producer = value.producer()
    if producer is not None:
        return f"produced by {describe_node(producer)}"
    if is_weight(value):
        return f"the initializer '{value.name}'"
    return f"the graph input '{value.name}'"


def available_at(value: ir.Value | None, root: ir.Node) -> bool:
    """Return whether a node that takes the place of `root` can read `value`.

    True for absent values, graph inputs, initializers, values of an enclosing graph, and values
    made before `root` in its own graph. Linear in the length of the graph.
    """
    producer = value.producer() if value is not None else None
    if producer is None or producer.graph is not root.graph:
        return True
    if root.graph is None:
        return False
    for node in root.graph:
        if node is root:
            return False
        if node is producer:
            return True
    return False


def like(value: ir.Value) -> Declaration:
    """Return the declaration of `value`, for a new value that is to be the same."""
    return value.dtype, value.shape


def make(
    op: RewriterContext,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    *outputs: Declaration,
    domain: str = "",
    attributes: Mapping[str, object] | None = None,
    name: str | None = None,
) -> ir.Value:
    """Make one node, every output declared, and return its first output.

    Args:
        op: The context that `Rule.emit` got.
        op_type: The operator.
        inputs: `None` is an omitted input; trailing ones are dropped.
        *outputs: Element type and shape of each output, `(None, None)` where nothing is known.
        domain: The operator's domain.
        attributes: Values by name; those that are `None` are left out.
        name: The node's name; made unique afterwards.
    """
    return make_all(op, op_type, inputs, *outputs, domain=domain, attributes=attributes, name=name)[
        0
    ]


def make_all(
    op: RewriterContext,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    *outputs: Declaration,
    domain: str = "",
    attributes: Mapping[str, object] | None = None,
    name: str | None = None,
) -> list[ir.Value]:
    """Make one node as `make` does and return all its outputs."""
    arguments = list(inputs)
    while arguments and arguments[-1] is None:
        arguments.pop()
    values = [
        ir.Value(
            type=None if dtype is None else ir.TensorType(dtype),
            shape=None if shape is None else ir.Shape(shape),
        )
        for dtype, shape in outputs
    ]
    op.call_op(
        op_type,
        arguments,
        {key: value for key, value in (attributes or {}).items() if value is not None},
        domain=domain,
        outputs=values,
        name=name or None,
    )
    return values


def make_int64s(op: RewriterContext, numbers: Sequence[int]) -> ir.Value:
    """Make a `Constant` node with a 1-D int64 tensor.

    Not an initializer: function bodies have none.
    """
    tensor = ir.tensor(list(numbers), dtype=ir.DataType.INT64)
    return make(
        op, "Constant", [], (ir.DataType.INT64, [len(numbers)]), attributes={"value": tensor}
    )
