"""`read_chain`: attention written in primitives, from its last product back to query and key."""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from mobius_ir_rules.fusion._head_layout import exchanged_last_axes
from mobius_ir_rules.fusion.polynomial import scalar
from mobius_ir_rules.values import input_at, is_binary, producer_of, rank

Nodes = tuple[ir.Node, ...]


@dataclasses.dataclass(frozen=True)
class AttentionChain:
    """What a product of attention weights and values is made of, nothing proved of it."""

    product: ir.Node
    softmax: ir.Node
    guard: ir.Node | None
    query: ir.Value
    key: ir.Value
    mask: ir.Value | None
    scale: float
    softcap: float
    precision: ir.DataType | None
    nodes: Nodes


def read_chain(product: ir.Node) -> AttentionChain | None:
    """Return the attention that ends in a MatMul, `None` where no softmax of a product does."""
    if not is_binary(product):
        return None
    nodes: list[ir.Node] = []
    weights = product.inputs[0]
    guard = _nan_guard(weights)
    if guard is not None:
        nodes += guard
        weights = guard[0].inputs[2]
    back, weights = _step(nodes, weights, "Cast")
    softmax, scores = _step(nodes, weights, "Softmax")
    if softmax is None:
        return None
    precision = None
    if back is not None:
        wide, scores = _step(nodes, scores, "Cast")
        precision = softmax.outputs[0].dtype
        if wide is None or precision is None:
            return None
    # Without a mask the scores end in a product too; an Add of two products is ambiguous.
    add = producer_of(scores, "", "Add")
    readings: list[tuple[ir.Value | None, ir.Value | None, tuple[ir.Node, ...]]] = (
        [(scores, None, ())]
        if add is None or not is_binary(add)
        else [(add.inputs[i], add.inputs[1 - i], (add,)) for i in (0, 1)]
    )
    for inner, mask, masking in readings:
        found = _scores(inner)
        if found is not None:
            query, key, scale, softcap, of_scores = found
            return AttentionChain(
                product,
                softmax,
                guard[0] if guard else None,
                query,
                key,
                mask,
                scale,
                softcap,
                precision,
                (*nodes, *masking, *of_scores),
            )
    return None


def _scores(value: ir.Value | None) -> tuple[ir.Value, ir.Value, float, float, Nodes] | None:
    """Return (query, key, scale, softcap, nodes) of scaled and capped scores."""
    softcap, nodes, value = _softcap(value)
    value, scale, scaling = _scaled(value)
    product = producer_of(value, "", "MatMul")
    if product is None or not is_binary(product):
        return None
    query, query_scale, of_query = _scaled(product.inputs[0])
    turned, turned_scale, of_turned = _scaled(product.inputs[1])
    if query is None or turned is None:
        return None
    exchanged = exchanged_last_axes(turned)
    if exchanged is None:
        return None
    key, key_scale, of_key = _scaled(exchanged[0])
    if key is None:
        return None
    total = scale * query_scale * turned_scale * key_scale
    if not math.isfinite(total) or total == 0.0:
        return None
    between = (*scaling, product, *of_query, *of_turned, *exchanged[1], *of_key)
    return query, key, total, softcap, (*nodes, *between)


def _scaled(value: ir.Value | None) -> tuple[ir.Value | None, float, Nodes]:
    """Return what is multiplied or divided by a constant scalar of rank 0 or 1, and the factor."""
    node = value.producer() if value is not None else None
    if node is None or node.domain or not is_binary(node):
        return value, 1.0, ()
    left, right = node.inputs
    if node.op_type == "Mul":
        for operand, other in ((left, right), (right, left)):
            factor = scalar(other)
            if factor is not None and (rank(other) or 0) <= 1:
                return operand, factor, (node,)
    if node.op_type == "Div" and (divisor := scalar(right)) and (rank(right) or 0) <= 1:
        return left, 1.0 / divisor, (node,)
    return value, 1.0, ()


def _softcap(value: ir.Value | None) -> tuple[float, Nodes, ir.Value | None]:
    """Return (c, nodes, x) where the value is `c * Tanh(x / c)`, else (0, (), value)."""
    capped, cap, of_cap = _scaled(value)
    tanh = producer_of(capped, "", "Tanh") if of_cap else None
    if tanh is None or cap <= 0.0:
        return 0.0, (), value
    x, inverse, of_inverse = _scaled(input_at(tanh, 0))
    if not of_inverse or not math.isclose(cap * inverse, 1.0, rel_tol=1e-6):
        return 0.0, (), value
    return cap, (*of_cap, tanh, *of_inverse), x


def _nan_guard(value: ir.Value | None) -> Nodes | None:
    """Return the nodes of `Where(IsNaN(w), 0, w)`."""
    where = producer_of(value, "", "Where")
    test = producer_of(input_at(where, 0), "", "IsNaN") if where is not None else None
    if where is None or test is None or scalar(input_at(where, 1)) != 0.0:
        return None
    return (where, test) if input_at(test, 0) is input_at(where, 2) else None


def _step(
    nodes: list[ir.Node], value: ir.Value | None, op_type: str
) -> tuple[ir.Node | None, ir.Value | None]:
    """Return the operator that makes the value and its input, adding it to `nodes`."""
    node = producer_of(value, "", op_type)
    if node is None:
        return None, value
    nodes.append(node)
    return node, input_at(node, 0)
