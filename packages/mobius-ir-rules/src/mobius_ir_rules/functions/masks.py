"""Bodies of the decoder-mask operators: `(attention_mask, position_ids)` -> a boolean mask.

A decoder says what its mask *is* with one call in the domain `mobius.mask`; rules recognise the
operator (see `mobius_ir_rules.attention_mask`), everyone else inlines the body. No built graph
leaves with this domain.

Shapes: `attention_mask` is int64 `[B, T]` with `T = past + S`, 1 for a real token and 0 for
padding; `position_ids` is int64 `[B, S]`; the result is bool `[B, 1, S, T]`, true where a query
may see a key, to be given to `ai.onnx::Attention` as `attn_mask`.

The operators' contract:

* Query `i` sits in slot `T - S + i` of the key/value cache, and sees no later slot.
* A padding slot is seen by nobody but itself, so that no row of the mask is empty: a softmax over
  an empty row is NaN on some runtimes.
* `position_ids` are the indices of the query tokens among the real tokens of their row
  (`cumsum(attention_mask) - 1` at real tokens). The body needs only their number. A rule may rely
  on it: rotary positions fed by the same value are the positions that `GroupQueryAttention`
  computes by itself.
* A window counts real tokens, the current one included, as if the row ran alone: padding between
  prompt and continuation does not shorten it. So do chunks, the first of which begins with the
  first real token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, build_function

DOMAIN = "mobius.mask"
CAUSAL_MASK = (DOMAIN, "CausalMask")
SLIDING_WINDOW_MASK = (DOMAIN, "SlidingWindowMask")
CHUNKED_MASK = (DOMAIN, "ChunkedMask")


def causal_mask(opset_version: int) -> ir.Function:
    """Return `CausalMask(attention_mask, position_ids) -> mask` for `opset_version`."""
    return _mask_function(CAUSAL_MASK, _visible, [], opset_version)


def sliding_window_mask(opset_version: int) -> ir.Function:
    """Return `SlidingWindowMask(attention_mask, position_ids; window) -> mask`.

    `window` is the number of tokens that a query sees, itself included; it has no default.
    """

    def body(op: OpBuilder, attention_mask: ir.Value, position_ids: ir.Value) -> Any:
        visible = _visible(op, attention_mask, position_ids)
        queries, keys = _numbers(
            op, op.CumSum(attention_mask, op.Constant(value_int=1)), position_ids
        )
        window = op.Constant(value_int=ir.RefAttr("value_int", "window", ir.AttributeType.INT))
        return op.And(visible, op.Less(op.Sub(queries, keys), window))

    attributes = [ir.Attr("window", ir.AttributeType.INT, None)]
    return _mask_function(SLIDING_WINDOW_MASK, body, attributes, opset_version)


def chunked_mask(opset_version: int) -> ir.Function:
    """Return `ChunkedMask(attention_mask, position_ids; chunk) -> mask`.

    A query sees the tokens of its own chunk: those whose index among the real ones, divided by
    `chunk`, is the same. `chunk` has no default.
    Source: `transformers.masking_utils.chunked_overlay`.
    """

    def body(op: OpBuilder, attention_mask: ir.Value, position_ids: ir.Value) -> Any:
        visible = _visible(op, attention_mask, position_ids)
        one = op.Constant(value_int=1)
        # Padding on the left has the index -1, and a chunk with the first token or without:
        # nobody sees it either way.
        index = op.Sub(op.CumSum(attention_mask, one), one)
        chunk = op.Constant(value_int=ir.RefAttr("value_int", "chunk", ir.AttributeType.INT))
        queries, keys = _numbers(op, op.Div(index, chunk), position_ids)
        return op.And(visible, op.Equal(queries, keys))

    attributes = [ir.Attr("chunk", ir.AttributeType.INT, None)]
    return _mask_function(CHUNKED_MASK, body, attributes, opset_version)


def _numbers(op: OpBuilder, numbers: ir.Value, position_ids: ir.Value) -> tuple[Any, Any]:
    """Return the numbers of slots, `[B, T]`, as those of queries and keys.

    They are `[B, 1, S, 1]` and `[B, 1, 1, T]`: the last S slots are the queries'.
    """
    query_numbers = op.Slice(
        numbers,
        op.Neg(op.Shape(position_ids, start=1, end=2)),
        op.Constant(value_ints=[2**31 - 1]),
        op.Constant(value_ints=[1]),
    )
    return (
        op.Unsqueeze(query_numbers, op.Constant(value_ints=[1, 3])),
        op.Unsqueeze(numbers, op.Constant(value_ints=[1, 2])),
    )


def _visible(op: OpBuilder, attention_mask: ir.Value, position_ids: ir.Value) -> Any:
    """Causal and not padding, or the query's own slot; `[B, 1, S, T]`."""
    zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
    total_length = op.Squeeze(op.Shape(attention_mask, start=1, end=2))
    query_length = op.Squeeze(op.Shape(position_ids, start=1, end=2))
    key_slot = op.Range(zero, total_length, one)
    query_slot = op.Unsqueeze(
        op.Range(op.Sub(total_length, query_length), total_length, one),
        op.Constant(value_ints=[1]),
    )
    real = op.Unsqueeze(
        op.Cast(attention_mask, to=ir.DataType.BOOL), op.Constant(value_ints=[1, 2])
    )
    own_slot = op.Equal(query_slot, key_slot)
    return op.And(op.GreaterOrEqual(query_slot, key_slot), op.Or(real, own_slot))


def _mask_function(
    identifier: tuple[str, str],
    body: Callable[[OpBuilder, ir.Value, ir.Value], Any],
    attributes: list[ir.Attr],
    opset_version: int,
) -> ir.Function:
    int64 = ir.TensorType(ir.DataType.INT64)
    inputs = [
        ir.Value(name="attention_mask", type=int64, shape=ir.Shape(["batch", "total"])),
        ir.Value(name="position_ids", type=int64, shape=ir.Shape(["batch", "sequence"])),
    ]
    domain, name = identifier
    return build_function(
        body,
        inputs,
        domain=domain,
        name=name,
        attributes=attributes,
        opset_imports={"": opset_version},
    )
