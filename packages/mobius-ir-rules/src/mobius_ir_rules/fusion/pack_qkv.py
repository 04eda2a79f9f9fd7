"""`PackQKV`: three projections in front of `GroupQueryAttention` -> one.

**Before**

```
q = MatMul (x, wq)
k = MatMul (x, wk)
v = MatMul (x, wv)
y, present_key, present_value = com.microsoft.GroupQueryAttention (q, k, v, ...)
```

**After**

```
w = Concat <axis = -1> (wq, wk, wv)
qkv = MatMul (x, w)
y, present_key, present_value = com.microsoft.GroupQueryAttention (qkv, , , ...)
```

A weight is an initializer, with its data or without, or `Transpose(initializer)` as a linear layer
writes it; `FoldWeights` makes one weight of the `Concat`. With
`com.microsoft::FusedMatMul(x, w) <transB = 1>` the weights are `[out, in]` and join along axis 0.
Where all three projections add a 1-D bias, the biases join too.

Whatever stands between a projection and the attention (norms of query and key, rotary) stops the
rule: packed values go into the operator as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

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
    producer_of,
    rank,
    static_dim,
)

_ROLES = ("query", "key", "value")


def pack_qkv_rules() -> list[Rule]:
    """Return the rules that join the projections of `GroupQueryAttention`."""
    return [PackQKV()]


@dataclasses.dataclass(frozen=True)
class _Projection:
    """`MatMul(x, weight)`, or `FusedMatMul` with `transposed` weights, plus `bias`."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    transposed: bool
    width: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class _PackPlan(Plan):
    projections: tuple[_Projection, ...]


class PackQKV(Rule):
    """Joins the three projections of a `GroupQueryAttention` into one `MatMul`."""

    roots = ((MICROSOFT, "GroupQueryAttention"),)
    emits = ((MICROSOFT, "GroupQueryAttention"),)

    def plan(self, node: ir.Node) -> _PackPlan | None:
        """Prove that the three projections are alike, of one value, and serve this node alone."""
        if input_at(node, 1) is None and input_at(node, 2) is None:
            return None  # Packed already.
        projections = tuple(_projection(node, index) for index in range(3))
        first = projections[0]
        for role, other in zip(_ROLES[1:], projections[1:], strict=True):
            _require_alike(node, role, first, other)
        _require_widths(node, projections)
        absorbed = [part for projection in projections for part in reversed(projection.nodes)]
        return _PackPlan(
            root=node,
            replaced=tuple(node.outputs),
            absorbed=tuple(absorbed),
            projections=projections,
        )

    def emit(self, op: RewriterContext, plan: _PackPlan) -> Sequence[ir.Value]:
        """Make the joined projection and the operator with key and value left out."""
        first = plan.projections[0]
        width = sum(projection.width for projection in plan.projections)
        dtype = first.weight.dtype
        axis = 0 if first.transposed else 1
        sizes = [static_dim(first.weight, 0), static_dim(first.weight, 1)]
        sizes[axis] = width
        weight = make(
            op,
            "Concat",
            [projection.weight for projection in plan.projections],
            (dtype, sizes),
            attributes={"axis": axis if first.transposed else -1},
        )
        old = plan.root.inputs[0]
        shape = None if old is None or old.shape is None else [*old.shape[:-1], width]
        packed = make(
            op,
            "FusedMatMul" if first.transposed else "MatMul",
            [first.x, weight],
            (dtype, shape),
            domain=MICROSOFT if first.transposed else "",
            attributes={"transB": 1} if first.transposed else {},
            name=first.nodes[0].name,
        )
        if first.bias is not None:
            bias = make(
                op,
                "Concat",
                [projection.bias for projection in plan.projections],
                (dtype, [width]),
                attributes={"axis": 0},
            )
            packed = make(op, "Add", [packed, bias], (dtype, shape), name=first.nodes[-1].name)
        return make_all(
            op,
            "GroupQueryAttention",
            [packed, None, None, *plan.root.inputs[3:]],
            *(like(value) for value in plan.replaced),
            domain=MICROSOFT,
            attributes=plan.root.attributes,
            name=plan.root.name,
        )


def _projection(root: ir.Node, index: int) -> _Projection:
    """Return what computes the input; refuse where that is not a projection of its own."""
    role, value = _ROLES[index], input_at(root, index)
    node = value.producer() if value is not None else None
    bias: ir.Value | None = None
    nodes: list[ir.Node] = []
    if node is not None and (node.domain, node.op_type) == ("", "Add"):
        bias = next((term for term in node.inputs if is_weight(term) and rank(term) == 1), None)
        if bias is not None:
            nodes.append(node)
            product = node.inputs[1 if node.inputs[0] is bias else 0]
            node = product.producer() if product is not None else None
    transposed = node is not None and (node.domain, node.op_type) == (MICROSOFT, "FusedMatMul")
    if node is None or not (transposed or (node.domain, node.op_type) == ("", "MatMul")):
        refuse(
            f"The {role} of {describe_node(root)} is {describe_value(value)}; a MatMul with a "
            "weight, with or without a 1-D bias added, is needed, because packed values go into "
            "GroupQueryAttention as they are.",
            root,
        )
    nodes.insert(0, node)
    for part in nodes:
        _require_only_reader(root, role, part)
    x, weight = input_at(node, 0), input_at(node, 1)
    if x is None or weight is None or not _is_foldable(weight) or rank(weight) != 2:
        refuse(
            f"The {role} projection, {describe_node(node)}, multiplies by a value that is "
            f"{describe_value(weight)}; a 2-D initializer, or the transpose of one, is needed.",
            node,
        )
    if transposed:
        _require_plain(role, node)
    _require_untied(role, node, weight)
    width = static_dim(weight, 0 if transposed else 1)
    depth = static_dim(weight, 1 if transposed else 0)
    if width is None or depth is None or weight.dtype is None:
        refuse(
            f"The weight of the {role} projection, {describe_node(node)}, has the type "
            f"{weight.dtype} and the shape {weight.shape}; known ones are needed.",
            node,
        )
    if bias is not None and static_dim(bias, 0) != width:
        refuse(
            f"The bias of the {role} projection, {describe_node(nodes[-1])}, has the shape "
            f"{bias.shape}; [{width}] is needed.",
            node,
        )
    return _Projection(tuple(nodes), x, weight, bias, transposed, width)


def _is_foldable(weight: ir.Value) -> bool:
    """Return whether the value is an initializer or the transpose of one."""
    transpose = producer_of(weight, "", "Transpose")
    return is_weight(weight) or (transpose is not None and is_weight(transpose.inputs[0]))


def _require_only_reader(root: ir.Node, role: str, part: ir.Node) -> None:
    value = part.outputs[0]
    if part.graph is not root.graph or value.is_graph_output() or len(value.uses()) != 1:
        refuse(
            f"The {role} projection of {describe_node(root)}, {describe_node(part)}, has another "
            "reader, or is an output, or is in another graph; one that only the attention reads "
            "is needed, because the packed product takes its place.",
            part,
        )


def _require_plain(role: str, node: ir.Node) -> None:
    flags = {name: int_attribute(node, name, 0) for name in _FLAGS}
    alpha = float_attribute(node, "alpha", 1.0)
    if flags != _TRANSPOSED or alpha != 1.0:
        refuse(
            f"The {role} projection, {describe_node(node)}, has alpha {alpha:g} and the "
            f"attributes {flags}; transB alone, and alpha 1, is needed.",
            node,
        )


_FLAGS = ("transA", "transB", "transBatchA", "transBatchB")
_TRANSPOSED = {"transA": 0, "transB": 1, "transBatchA": 0, "transBatchB": 0}


def _require_untied(role: str, node: ir.Node, weight: ir.Value) -> None:
    """Refuse where the weight must stay as it is: packing would store it twice."""
    chain = [weight]
    if (producer := weight.producer()) is not None and producer.inputs[0] is not None:
        chain.append(producer.inputs[0])
    for value in chain:
        if len(value.uses()) != 1 or value.is_graph_output():
            refuse(
                f"The weight of the {role} projection, {describe_node(node)}, has another "
                f"reader: it is {describe_value(value)}; a weight of its own is needed, because "
                "packing would store the shared one twice.",
                node,
            )


def _require_alike(root: ir.Node, role: str, first: _Projection, other: _Projection) -> None:
    if other.x is not first.x:
        refuse(
            f"The query projection of {describe_node(root)} multiplies a value that is "
            f"{describe_value(first.x)} and the {role} projection one that is "
            f"{describe_value(other.x)}; the same value is needed.",
            root,
        )
    if (other.bias is None) != (first.bias is None):
        refuse(
            f"The query projection of {describe_node(root)} has "
            f"{'no' if first.bias is None else 'a'} bias and the {role} projection has "
            f"{'no' if other.bias is None else 'one'}; a bias on all or none is needed.",
            root,
        )
    if other.transposed != first.transposed or other.weight.dtype != first.weight.dtype:
        refuse(
            f"The query projection of {describe_node(root)} is {describe_node(first.nodes[0])} "
            f"with {first.weight.dtype} weights and the {role} projection "
            f"{describe_node(other.nodes[0])} with {other.weight.dtype} weights; the same "
            "operator and type are needed.",
            root,
        )


def _require_widths(root: ir.Node, projections: Sequence[_Projection]) -> None:
    """Refuse unless the operator, which only knows the sum, will split it at the same places."""
    counts = [int_attribute(root, name, 0) for name in ("num_heads", "kv_num_heads")]
    counts.append(counts[1])
    widths = [projection.width for projection in projections]
    size = widths[0] // counts[0] if counts[0] else 0
    if size == 0 or widths != [count * size for count in counts]:
        refuse(
            f"The projections of {describe_node(root)} have the widths {widths} for "
            f"{counts} heads; heads of one size are needed.",
            root,
        )
