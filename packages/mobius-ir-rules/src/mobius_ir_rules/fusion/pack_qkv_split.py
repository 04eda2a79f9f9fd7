"""`PackQKVSplit`: three projections of one attention, norms behind them -> one, and a Split.

`PackQKV` puts the packed projection into GroupQueryAttention as it is. With norms of queries and
keys (or rotary outside the operator) that is not possible; here the packed product is split where
the projections were, and everything behind it stays.

**Before**

```
q, k, v = MatMul (x, wq), MatMul (x, wk), MatMul (x, wv)
n = RMSNormalization (Reshape (q, heads), weight)   # and so on, up to the attention
```

**After**

```
w = Concat <axis = -1> (wq, wk, wv)
q, k, v = Split <axis = -1> (MatMul (x, w), widths)
```

A weight is an initializer, with its data or without, or its `Transpose`; `FoldWeights` makes one
of the `Concat`. With `com.microsoft::FusedMatMul(x, w) <transB = 1>` they join along axis 0.

**Whether it pays** depends on the target. On ONNX Runtime's CPU provider (1.32, float32, one
thread, widths 2048 + 1024 + 1024 and 2048 + 512 + 512) one token gains 5 to 20 percent, and 16 or
256 tokens lose 2 to 27: the Split copies what three products write in place. It is meant for
targets where launching a kernel costs more than that copy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext, RewriteRule

from mobius_ir_rules.rule import Plan, Rule, refuse
from mobius_ir_rules.values import (
    MICROSOFT,
    describe_node,
    describe_value,
    float_attribute,
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

_PRODUCTS = (("", "MatMul"), (MICROSOFT, "FusedMatMul"))
_ATTENTIONS = (("", "Attention"), (MICROSOFT, "GroupQueryAttention"))
# What may stand between a projection and the attention; the value goes through input 0.
_BETWEEN = frozenset(
    {
        ("", "Add"),
        ("", "Reshape"),
        ("", "Transpose"),
        ("", "RMSNormalization"),
        ("", "LayerNormalization"),
        ("", "SimplifiedLayerNormalization"),
        ("", "RotaryEmbedding"),
        (MICROSOFT, "RotaryEmbedding"),
    }
)
_LONGEST = 8
_ROLES = ("query", "key", "value")
_TRANSPOSED = {"transA": 0, "transB": 1, "transBatchA": 0, "transBatchB": 0}


def pack_qkv_split_rules() -> list[RewriteRule]:
    """Return the rules of this module."""
    return [PackQKVSplit()]


@dataclasses.dataclass(frozen=True)
class _Projection:
    """One product.

    Attributes:
        node: The product.
        weight: The initializer.
        turned: Whether the product is with its transpose, made by a node.
        depth: Width of the value that is multiplied.
        width: Width of the result.
    """

    node: ir.Node
    weight: ir.Value
    turned: bool
    depth: int
    width: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class _SplitPlan(Plan):
    x: ir.Value
    projections: tuple[_Projection, ...]
    transposed: bool


class PackQKVSplit(Rule):
    """Join the three projections in front of one attention, where something is between."""

    roots = _PRODUCTS

    def plan(self, node: ir.Node) -> _SplitPlan | None:
        """Find the attention, its three projections, and prove that they can be one product."""
        attention = _attention_behind(node)
        if attention is None:
            return None
        chains = [_chain_before(input_at(attention, index)) for index in range(3)]
        products = [chain[-1] for chain in chains if chain]
        if len(products) != 3 or node is not _first(node, products):
            return None
        direct = all(len(chain) == 1 or _is_bias(chain) for chain in chains)
        if direct and attention.domain == MICROSOFT:
            return None  # PackQKV's.
        if len(set(products)) != 3:
            return None  # Query and key, say, are one value already.
        x, transposed = node.inputs[0], node.domain == MICROSOFT
        projections = []
        for role, product in zip(_ROLES, products, strict=True):
            if product.inputs[0] is not x or product.domain != node.domain:
                refuse(
                    f"The {role} projection of {describe_node(attention)}, "
                    f"{describe_node(product)}, multiplies a value that is "
                    f"{describe_value(product.inputs[0])}; the operator and the value of "
                    f"{describe_node(node)} are needed.",
                    product,
                )
            projections.append(_projection(role, product, transposed))
        assert x is not None
        nodes = [projection.node for projection in projections if projection.node is not node]
        turns = [producer_of(part.node.inputs[1], "", "Transpose") for part in projections]
        return _SplitPlan(
            root=node,
            replaced=tuple(projection.node.outputs[0] for projection in projections),
            absorbed=(*nodes, *(turn for turn in turns if turn is not None)),
            x=x,
            projections=tuple(projections),
            transposed=transposed,
        )

    def emit(self, op: RewriterContext, plan: _SplitPlan) -> Sequence[ir.Value]:
        """Make the joined weight, its product and the split."""
        widths = [projection.width for projection in plan.projections]
        first = plan.projections[0].weight
        axis = 0 if plan.transposed else 1
        sizes = [plan.projections[0].depth] * 2
        sizes[axis] = sum(widths)
        weight = make(
            op,
            "Concat",
            [_weight(op, projection) for projection in plan.projections],
            (first.dtype, sizes),
            attributes={"axis": axis if plan.transposed else -1},
        )
        old = plan.replaced[0]
        shape = None if old.shape is None else [*old.shape[:-1], sum(widths)]
        packed = make(
            op,
            "FusedMatMul" if plan.transposed else "MatMul",
            [plan.x, weight],
            (old.dtype, shape),
            domain=MICROSOFT if plan.transposed else "",
            attributes={"transB": 1} if plan.transposed else {},
            name=plan.root.name,
        )
        return make_all(
            op,
            "Split",
            [packed, make_int64s(op, widths)],
            *(like(value) for value in plan.replaced),
            attributes={"axis": -1},
        )


def _attention_behind(node: ir.Node) -> ir.Node | None:
    """Return the attention that the product goes into as query, key or value."""
    value = node.outputs[0]
    for _ in range(_LONGEST):
        readers = {use.node: use.idx for use in value.uses()}
        if len(readers) != 1:
            return None
        (reader, index) = next(iter(readers.items()))
        operator = (reader.domain, reader.op_type)
        if operator in _ATTENTIONS:
            return reader if index < 3 else None
        if operator not in _BETWEEN or (index and reader.op_type != "Add"):
            return None
        value = reader.outputs[0]
    return None


def _chain_before(value: ir.Value | None) -> list[ir.Node]:
    """Return the nodes from the attention's input back to a product; empty if there is none."""
    chain: list[ir.Node] = []
    while len(chain) < _LONGEST:
        node = value.producer() if value is not None else None
        if node is None:
            return []
        chain.append(node)
        operator = (node.domain, node.op_type)
        if operator in _PRODUCTS:
            return chain
        if operator not in _BETWEEN:
            return []
        value = node.inputs[0]
        if node.op_type == "Add" and is_weight(value):
            value = node.inputs[1]
    return []


def _is_bias(chain: Sequence[ir.Node]) -> bool:
    return len(chain) == 2 and chain[0].op_type == "Add"


def _first(node: ir.Node, products: Sequence[ir.Node]) -> ir.Node | None:
    """Return the product that comes first in the graph of `node`."""
    if node.graph is None:
        return None
    return next((candidate for candidate in node.graph if candidate in products), None)


def _projection(role: str, product: ir.Node, transposed: bool) -> _Projection:
    """Return the product as a projection; refuse where its weight cannot be joined."""
    described = f"The {role} projection, {describe_node(product)},"
    value = product.inputs[1]
    turn = producer_of(value, "", "Transpose")
    weight = turn.inputs[0] if turn is not None else value
    if not is_weight(weight) or rank(weight) != 2 or weight is None or weight.dtype is None:
        refuse(
            f"{described} multiplies by a value that is {describe_value(value)}; a 2-D "
            "initializer, or the transpose of one, is needed.",
            product,
        )
    if transposed:
        flags = {name: int_attribute(product, name, 0) for name in _TRANSPOSED}
        alpha = float_attribute(product, "alpha", 1.0)
        if flags != _TRANSPOSED or alpha != 1.0:
            refuse(
                f"{described} has alpha {alpha:g} and the attributes {flags}; transB alone, and "
                "alpha 1, is needed.",
                product,
            )
    assert value is not None
    if any(len(part.uses()) != 1 or part.is_graph_output() for part in {weight, value}):
        refuse(
            f"{described} shares its weight, {describe_value(weight)}, with another reader; a "
            "weight of its own is needed, because packing would store the shared one twice.",
            product,
        )
    turned = turn is not None
    width = static_dim(weight, 0 if turned or transposed else 1)
    depth = static_dim(weight, 1 if turned or transposed else 0)
    if (turned and transposed) or width is None or depth is None:
        refuse(
            f"The weight of the {role} projection, {describe_node(product)}, has the shape "
            f"{weight.shape}, and is {describe_value(value)}; two known sizes are needed, and no "
            "Transpose with FusedMatMul.",
            product,
        )
    return _Projection(product, weight, turned, depth, width)


def _weight(op: RewriterContext, projection: _Projection) -> ir.Value:
    """Return the weight as the product reads it; a transpose is made anew, before the product."""
    if not projection.turned:
        return projection.weight
    return make(
        op,
        "Transpose",
        [projection.weight],
        (projection.weight.dtype, [projection.depth, projection.width]),
        attributes={"perm": [1, 0]},
    )
