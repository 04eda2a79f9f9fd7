"""AttentionFusion: scaled dot-product attention written in primitives -> ai.onnx Attention."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import RewriterContext, RewriteRule

from mobius_ir_rules.fusion._attention_chain import AttentionChain, Nodes, read_chain
from mobius_ir_rules.fusion._head_layout import repeated_heads
from mobius_ir_rules.fusion._normalized import require_opset
from mobius_ir_rules.fusion._shape_vectors import dims
from mobius_ir_rules.fusion.grouped_heads import GroupedHeads
from mobius_ir_rules.fusion.polynomial import scalar
from mobius_ir_rules.rule import Plan, Rule, refuse
from mobius_ir_rules.values import (
    describe_node,
    describe_value,
    input_at,
    int_attribute,
    like,
    make,
    make_int64s,
    producer_of,
    rank,
)

OLDEST_OPSET = 23
"""First opset with Attention."""

_FLOOR = {
    ir.DataType.FLOAT: -1e30,
    ir.DataType.FLOAT16: -60000.0,
    ir.DataType.BFLOAT16: -1e30,
}
"""Least number of a mask that the operator gets, by type.

ONNX Runtime's kernel (1.32, CPU) takes the type's lowest number to mean "never", and a row of it
gives zeros, where adding it gives equal weights. A score is lost in rounding beside this number
just as beside the lowest, so that nothing else changes.
"""

DTYPES = tuple(_FLOOR)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _AttentionPlan(Plan):
    query: ir.Value
    key: ir.Value
    value: ir.Value
    mask: ir.Value | None
    attributes: dict[str, float | int | None]


class AttentionFusion(Rule):
    """Fuse the attention that torch.onnx writes before opset 23, and others like it.

    Before:

        scores = MatMul(Mul(q, a), Mul(Transpose <perm = [0, 1, 3, 2]> (k), b))
        weights = Softmax <axis = -1> (Add(scores, mask))
        y = MatMul(weights, v)

    After:

        y = Attention <scale = a * b> (q, k, v, mask)

    `q`, `k` and `v` are `[B, heads, length, size]`. Scales may be on either side or behind the
    product, there may be a softcap (`c * Tanh(scores / c)`) before the mask, a softmax in float32
    between Casts (`softmax_precision`), and no mask. Heads of `k` and `v` that are repeated for
    the query's (Unsqueeze, Expand, Reshape) are given as they were before. The mask is added, of
    the query's type, 2-D or 4-D, and each of its sizes is provably 1 or that of the scores. One
    with a single row for all queries is expanded to a row for each, as kernels want it. Numbers
    below -1e30 (-60000 in float16) become that: kernels give the type's lowest one a meaning.

    torch.onnx replaces NaN weights by 0 (`Where(IsNaN(weights), 0, weights)`): rows whose keys are
    all at minus infinity. That goes only where the mask provably has no such row: it is absent, or
    made by a Where of two finite float32 constants.
    """

    roots = (("", "MatMul"),)
    emits = (("", "Attention"),)

    def plan(self, node: ir.Node) -> _AttentionPlan | None:
        """Return what to do with the last product, `None` where it is none of attention."""
        chain = read_chain(node)
        if chain is None:
            return None
        value = input_at(node, 1)
        assert value is not None
        query, key = chain.query, chain.key
        _require_types(node, query, key, value)
        if (axis := int_attribute(chain.softmax, "axis", -1)) not in (-1, 3):
            refuse(f"{describe_node(chain.softmax)} has axis={axis}; the last is needed.", node)
        if chain.precision not in (None, ir.DataType.FLOAT):
            refuse(
                f"{describe_node(chain.softmax)} is computed in {chain.precision} between Casts; "
                "FLOAT is needed.",
                node,
            )
        weights = node.inputs[0]
        assert weights is not None
        if len(weights.uses()) > 1 or weights.is_graph_output():
            refuse(
                f"The attention weights that {describe_node(node)} reads are used elsewhere; it "
                "must be their only use.",
                node,
            )
        if chain.guard is not None:
            _require_no_empty_row(chain)
        require_opset(node, "Attention", OLDEST_OPSET)
        if chain.mask is not None:
            _require_mask(node, chain.mask, query, key)
        grouped_key, copies, of_key = repeated_heads(key)
        grouped_value, other_copies, of_value = repeated_heads(value)
        repeats: Nodes = ()
        if copies == other_copies:
            key, value, repeats = grouped_key, grouped_value, (*of_key, *of_value)
        return _AttentionPlan(
            root=node,
            replaced=(node.outputs[0],),
            absorbed=(*chain.nodes, *repeats),
            query=query,
            key=key,
            value=value,
            mask=chain.mask,
            attributes={
                "scale": chain.scale,
                "softcap": chain.softcap or None,
                "softmax_precision": None if chain.precision is None else int(chain.precision),
            },
        )

    def emit(self, op: RewriterContext, plan: _AttentionPlan) -> Sequence[ir.Value]:
        """Make the Attention."""
        mask = None
        if plan.mask is not None:
            mask = _rows_for_each(op, _at_least_floor(op, plan.mask), plan.query)
        return [
            make(
                op,
                "Attention",
                [plan.query, plan.key, plan.value, mask],
                like(plan.replaced[0]),
                attributes=plan.attributes,
                name=plan.root.name,
            )
        ]


def _at_least_floor(op: RewriterContext, mask: ir.Value) -> ir.Value:
    """Return the mask with no number below the floor of its type."""
    assert mask.dtype is not None
    floor = _FLOOR[mask.dtype]
    where = producer_of(mask, "", "Where")
    numbers = [scalar(input_at(where, index)) for index in (1, 2)] if where is not None else []
    known = [number for number in numbers if number is not None]
    if len(known) == 2 and min(known) >= floor:
        return mask
    tensor = ir.tensor(np.array(floor, mask.dtype.numpy()), dtype=mask.dtype)
    lowest = make(op, "Constant", [], (mask.dtype, []), attributes={"value": tensor})
    return make(op, "Max", [mask, lowest], like(mask))


def _rows_for_each(op: RewriterContext, mask: ir.Value, query: ir.Value) -> ir.Value:
    """Return the mask with a row for each query."""
    assert mask.shape is not None
    assert query.shape is not None
    if mask.shape[-2] != 1 or query.shape[2] == 1:
        return mask
    int64 = ir.DataType.INT64
    length = make(op, "Shape", [query], (int64, [1]), attributes={"start": 2, "end": 3})
    around = [make_int64s(op, [1] * (len(mask.shape) - 2)), length, make_int64s(op, [1])]
    target = make(op, "Concat", around, (int64, [len(mask.shape)]), attributes={"axis": 0})
    shape = ir.Shape([*mask.shape[:-2], query.shape[2], mask.shape[-1]])
    return make(op, "Expand", [mask, target], (mask.dtype, shape))


def _require_types(node: ir.Node, query: ir.Value, key: ir.Value, value: ir.Value) -> None:
    ranks = [rank(item) for item in (query, key, value)]
    if ranks != [4, 4, 4]:
        words = ", ".join("unknown" if item is None else str(item) for item in ranks)
        refuse(
            f"Query, key and value of the attention that {describe_node(node)} ends have the "
            f"ranks {words}; 4 is needed, [batch, heads, length, size].",
            node,
        )
    dtypes = [item.dtype for item in (query, key, value)]
    if dtypes[0] not in DTYPES or dtypes != [dtypes[0]] * 3:
        words = ", ".join(str(item or "unknown") for item in dtypes)
        refuse(
            f"Query, key and value of the attention that {describe_node(node)} ends have the "
            f"types {words}; one of FLOAT, FLOAT16 and BFLOAT16 is needed.",
            node,
        )


def _require_mask(node: ir.Node, mask: ir.Value, query: ir.Value, key: ir.Value) -> None:
    """Refuse a mask that the operator does not take, or that makes the scores larger."""
    if mask.dtype != query.dtype:
        refuse(
            f"The mask of the attention that {describe_node(node)} ends has the type "
            f"{mask.dtype or 'unknown'}; that of the query, {query.dtype}, is needed.",
            node,
        )
    sizes, of_query, of_key = dims(mask), dims(query), dims(key)
    assert of_query is not None
    assert of_key is not None
    scores = [*of_query[:3], of_key[2]]
    if sizes is None or len(sizes) not in (2, 4):
        found = "an unknown rank" if sizes is None else f"rank {len(sizes)}"
        refuse(
            f"The mask of the attention that {describe_node(node)} ends has {found}; 2 or 4 is "
            "needed.",
            node,
        )
    wanted = scores[-len(sizes) :]
    if sizes[-1] != wanted[-1] or any(
        size not in (1, other) for size, other in zip(sizes, wanted, strict=True)
    ):
        refuse(
            f"The mask of the attention that {describe_node(node)} ends has the shape "
            f"{mask.shape}, the query {query.shape} and the key {key.shape}; sizes that are "
            "provably those of the scores, or 1 before the last, are needed.",
            node,
        )


def _require_no_empty_row(chain: AttentionChain) -> None:
    """Refuse unless no row of the mask can be minus infinity throughout."""
    if chain.mask is None:
        return
    where = producer_of(chain.mask, "", "Where")
    numbers = [scalar(input_at(where, index)) for index in (1, 2)] if where is not None else []
    finite = [number is not None and math.isfinite(number) for number in numbers]
    if finite != [True, True] or chain.mask.dtype != ir.DataType.FLOAT:
        refuse(
            f"{describe_node(chain.product)} reads weights whose NaN are replaced by 0, and the "
            f"mask is {describe_value(chain.mask)}; a Where of two finite FLOAT constants is "
            "needed, because a row that is masked throughout is NaN otherwise.",
            chain.product,
        )


def attention_rules() -> list[RewriteRule]:
    """Return the rules of this file, for `onnxscript.rewriter.rewrite`."""
    return [AttentionFusion(), GroupedHeads()]
