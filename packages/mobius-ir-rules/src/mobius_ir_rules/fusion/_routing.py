"""Experts and shares on a graph -> the logits that make `com.microsoft::MoE` route the same way.

MoE chooses by logits and makes shares of them itself: the softmax of all of them, divided by its
chosen part or not. Where that is what the graph computes, it gets the graph's logits. Any other
routing is written as logits whose softmax it is: the logarithm of the shares at the experts chosen,
a number far below at all others. What is lost thereby, the sum of the shares, multiplies the
output. `QMoE` takes shares beside what it chooses by, so it gets them as they are, scattered.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.passes.constants import constant_ints
from mobius_ir_rules.values import input_at, int_attribute, make, make_int64s, producer_of, rank

# A share this part of the largest counts as nothing; the logarithm is finite in float16.
_LEAST_PART = 1e-30
# The exponential of this distance from the best logit is zero; it is finite in float16, too.
_FAR_BELOW = -10000.0


@dataclasses.dataclass(frozen=True)
class GraphLogits:
    """Logits that the graph has, of which MoE makes the graph's shares.

    Attributes:
        value: `[tokens, experts]`, in the type of the tokens.
        normalize: Value of `normalize_routing_weights`.
        nodes: What computes the routing and may be needless afterwards.
    """

    value: ir.Value
    normalize: bool
    nodes: tuple[ir.Node, ...]


def graph_logits(
    chosen: ir.Value, share: ir.Value, k: int, dtype: ir.DataType
) -> GraphLogits | None:
    """Return the graph's logits where MoE routes by them as the graph does, `None` elsewhere.

    Args:
        chosen: int64 `[tokens, k]`, the experts of each token.
        share: `[tokens, k]`.
        k: Number of experts of a token.
        dtype: Element type of the tokens, in which MoE takes logits. Logits that the graph has in
            another type are none: rounded, they may choose other experts.
    """
    top = producer_of(chosen, "", "TopK")
    if top is None or chosen is not top.outputs[1] or not _is_best(top, k):
        return None
    logits = input_at(top, 0)
    if logits is None or rank(logits) != 2:
        return None
    weigh = share.producer()
    nodes: list[ir.Node] = [top]
    if weigh is not None and _is_softmax(weigh) and weigh.inputs[0] is top.outputs[0]:
        normalize = True
        nodes.append(weigh)
    else:
        gather = producer_of(share, "", "GatherElements")
        scores = input_at(gather, 0) if gather is not None else None
        softmax = producer_of(scores, "", "Softmax")
        if (
            gather is None
            or softmax is None
            or input_at(gather, 1) is not chosen
            or int_attribute(gather, "axis", 0) not in (1, -1)
            or not _is_softmax(softmax)
            or softmax.inputs[0] is not logits
        ):
            return None
        normalize = False
        nodes += [gather, softmax]
    if logits.dtype != dtype:
        cast = producer_of(logits, "", "Cast")
        narrow = input_at(cast, 0) if cast is not None else None
        if cast is None or narrow is None or narrow.dtype != dtype or rank(narrow) != 2:
            return None
        nodes.append(cast)
        logits = narrow
    return GraphLogits(logits, normalize, tuple(nodes))


def make_logits(
    op: RewriterContext, chosen: ir.Value, share: ir.Value, experts: int, dtype: ir.DataType
) -> ir.Value:
    """Make logits `[tokens, experts]` whose softmax is `share` divided by its sum.

    Shares are taken relative to the largest, so that the logarithm of what matters is small and
    rounding it to 16 bits does no harm. The model is of opset 18 or later.
    """
    wide = ir.DataType.FLOAT
    tokens, k = share.shape or (None, None)
    column, matrix = (wide, [tokens, 1]), (wide, [tokens, k])
    least = _constant(op, _LEAST_PART, wide)
    axes = make_int64s(op, [1])
    best = make(op, "ReduceMax", [share, axes], column, attributes={"keepdims": 1})
    part = make(op, "Div", [share, make(op, "Max", [best, least], column)], matrix)
    log = make(op, "Log", [make(op, "Max", [part, least], matrix)], matrix)
    if dtype != wide:
        log = make(op, "Cast", [log], (dtype, [tokens, k]), attributes={"to": dtype})
    return _scatter(op, _FAR_BELOW, chosen, log, experts, dtype)


def make_scattered(
    op: RewriterContext, chosen: ir.Value, share: ir.Value, experts: int, dtype: ir.DataType
) -> ir.Value:
    """Make the shares of all experts, `[tokens, experts]`: those of the others are zero."""
    if share.dtype != dtype:
        share = make(op, "Cast", [share], (dtype, share.shape), attributes={"to": dtype})
    return _scatter(op, 0.0, chosen, share, experts, dtype)


def _scatter(
    op: RewriterContext,
    fill: float,
    chosen: ir.Value,
    numbers: ir.Value,
    experts: int,
    dtype: ir.DataType,
) -> ir.Value:
    """Make a matrix `[tokens, experts]` of `fill`, with `numbers` at the experts chosen."""
    tokens = chosen.shape[0] if chosen.shape is not None else None
    rows = make(op, "Shape", [chosen], (ir.DataType.INT64, [1]), attributes={"start": 0, "end": 1})
    shape = make(
        op,
        "Concat",
        [rows, make_int64s(op, [experts])],
        (ir.DataType.INT64, [2]),
        attributes={"axis": 0},
    )
    full = dtype, [tokens, experts]
    filled = make(op, "Expand", [_constant(op, fill, dtype), shape], full)
    return make(op, "ScatterElements", [filled, chosen, numbers], full, attributes={"axis": 1})


def _constant(op: RewriterContext, number: float, dtype: ir.DataType) -> ir.Value:
    tensor = ir.tensor(number, dtype=dtype)
    return make(op, "Constant", [], (dtype, []), attributes={"value": tensor})


def _is_best(top: ir.Node, k: int) -> bool:
    """Return whether the TopK takes the `k` greatest of the last axis of a matrix."""
    return (
        constant_ints(input_at(top, 1)) == [k]
        and int_attribute(top, "axis", -1) in (1, -1)
        and int_attribute(top, "largest", 1) == 1
    )


def _is_softmax(node: ir.Node) -> bool:
    """Return whether the node is a Softmax of the last axis of a matrix."""
    return (node.domain, node.op_type) == ("", "Softmax") and (
        int_attribute(node, "axis", -1) in (1, -1)
    )
