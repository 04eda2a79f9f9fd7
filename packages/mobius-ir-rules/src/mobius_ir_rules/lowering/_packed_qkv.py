"""Packed query, key and value in -> how to take them apart, and the three values."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.rule import refuse
from mobius_ir_rules.values import (
    describe_node,
    input_at,
    int_attribute,
    is_weight,
    like,
    make,
    make_all,
    make_int64s,
    producer_of,
    rank,
    static_dim,
)


@dataclasses.dataclass(frozen=True)
class Unpacking:
    """How to take a packed value apart.

    Attributes:
        packed: The value `[B, S, sum of widths]`.
        widths: Widths of query, key and value.
        product: The `MatMul` of `x` and a constant weight that makes it, if one does.
        bias: The bias that is added after `product`, and the node that adds it.
        nodes: The nodes that become needless.
    """

    packed: ir.Value
    widths: tuple[int, int, int]
    product: ir.Node | None
    bias: tuple[ir.Value, ir.Node] | None
    nodes: tuple[ir.Node, ...]


def plan_unpacking(root: ir.Node) -> Unpacking | None:
    """Return how to take apart the input of a packed `GroupQueryAttention`.

    `None` where the operator has key or value of its own.

    Raises:
        RefusedError: When the head size is not known.
    """
    packed = input_at(root, 0)
    if packed is None or input_at(root, 1) is not None or input_at(root, 2) is not None:
        return None
    heads = int_attribute(root, "num_heads", 0)
    kv_heads = int_attribute(root, "kv_num_heads", 0)
    product, bias = _linear(root, packed)
    total = static_dim(packed, 2)
    if total is None and product is not None:
        total = static_dim(product.inputs[1], 1)
    if total is None or heads < 1 or kv_heads < 1 or total % (heads + 2 * kv_heads):
        refuse(
            f"The packed query, key and value of {describe_node(root)} are "
            f"{'of unknown width' if total is None else f'{total} wide'} for {heads} and twice "
            f"{kv_heads} heads; a known multiple of the number of heads is needed.",
            root,
        )
    size = total // (heads + 2 * kv_heads)
    nodes = []
    if product is not None:
        constants = [product.inputs[1], bias[0] if bias else None]
        makers = [value.producer() for value in constants if value is not None]
        nodes = [bias[1] if bias else None, product, *makers]
    widths = (heads * size, kv_heads * size, kv_heads * size)
    needless = tuple(node for node in nodes if node is not None)
    return Unpacking(packed, widths, product, bias, needless)


def emit_unpacking(op: RewriterContext, unpacking: Unpacking) -> list[ir.Value]:
    """Make query, key and value.

    Where the packed value is a product with a constant weight, three products with its parts;
    otherwise a `Split` of the value.
    """
    packed, widths, product = unpacking.packed, unpacking.widths, unpacking.product
    batch: list[int | ir.SymbolicDim | None] = [None, None]
    if packed.shape is not None:
        batch = list(packed.shape[:-1])
    if product is None:
        outputs = [(packed.dtype, [*batch, width]) for width in widths]
        sizes = make_int64s(op, widths)
        return make_all(op, "Split", [packed, sizes], *outputs, attributes={"axis": -1})
    weight = product.inputs[1]
    assert weight is not None
    values = []
    for part, width, role in zip(_parts(op, weight, widths), widths, "qkv", strict=True):
        name = f"{product.name}/{role}" if product.name else None
        declared = (packed.dtype, [*batch, width])
        values.append(make(op, "MatMul", [product.inputs[0], part], declared, name=name))
    if unpacking.bias is not None:
        biases = _parts(op, unpacking.bias[0], widths)
        values = [
            make(op, "Add", [value, bias], like(value))
            for value, bias in zip(values, biases, strict=True)
        ]
    return values


def _linear(
    root: ir.Node, packed: ir.Value
) -> tuple[ir.Node | None, tuple[ir.Value, ir.Node] | None]:
    """Return the product and the bias that make `packed`, if `root` is their only reader.

    Others would still need the packed value, and the weight would be there twice.
    """
    node, bias = packed.producer(), None
    nodes = []
    if node is not None and (node.domain, node.op_type) == ("", "Add"):
        constant = next((term for term in node.inputs if _is_constant(term, 1)), None)
        if constant is not None:
            bias = (constant, node)
            nodes.append(node)
            product = node.inputs[1 if node.inputs[0] is constant else 0]
            node = product.producer() if product is not None else None
    if node is None or (node.domain, node.op_type) != ("", "MatMul"):
        return None, None
    nodes.append(node)
    weight = node.inputs[1]
    if weight is None or not _is_constant(weight, 2) or len(weight.uses()) != 1:
        return None, None
    if bias is not None and static_dim(bias[0], 0) != static_dim(weight, 1):
        return None, None
    for part in nodes:
        value = part.outputs[0]
        if part.graph is not root.graph or value.is_graph_output() or len(value.uses()) != 1:
            return None, None
    return node, bias


def _is_constant(value: ir.Value | None, axes: int) -> bool:
    """Return whether the value is a weight, its transpose, or weights joined on the last axis."""
    if value is None or rank(value) != axes:
        return False
    if is_weight(value):
        return True
    transpose = producer_of(value, "", "Transpose")
    if transpose is not None:
        return is_weight(transpose.inputs[0])
    joined = producer_of(value, "", "Concat")
    return (
        joined is not None
        and int_attribute(joined, "axis", 0) in (-1, axes - 1)
        and all(_is_constant(part, axes) for part in joined.inputs)
    )


def _parts(op: RewriterContext, value: ir.Value, widths: tuple[int, int, int]) -> list[ir.Value]:
    """Return the three parts of a weight or bias along its last axis."""
    joined = producer_of(value, "", "Concat")
    if joined is not None:
        parts = [part for part in joined.inputs if part is not None]
        if [static_dim(part, -1) for part in parts] == list(widths):
            return parts
    outer: list[int | ir.SymbolicDim | None] = []
    if value.shape is not None:
        outer = list(value.shape[:-1])
    outputs = [(value.dtype, [*outer, width]) for width in widths]
    sizes = make_int64s(op, widths)
    return make_all(op, "Split", [value, sizes], *outputs, attributes={"axis": -1})
