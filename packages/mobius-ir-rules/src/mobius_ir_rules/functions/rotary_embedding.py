"""Body of `com.microsoft::RotaryEmbedding`: rotates the first channels of each head by position.

    output = RotaryEmbedding(input, position_ids, cos_cache, sin_cache;
                             interleaved, num_heads, rotary_embedding_dim)

`input` is `[batch, sequence, heads * head_size]` or `[batch, heads, sequence, head_size]`, the
caches `[positions, rotary / 2]` with `rotary` at most `head_size`, all of one float type.
`position_ids` is int64: `[batch, sequence]`, or `[1]`, the position of the first token. For an
input of rank 3, `num_heads` says what a head is; 0 stands for heads as wide as the caches.

Rank and attributes are not known to the body, so it computes shapes and channel orders instead of
branching on them. `scale` and `is_packed_batching` are not supported.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.body import int_attribute, make_function
from mobius_ir_rules.values import MICROSOFT

ROTARY_EMBEDDING = (MICROSOFT, "RotaryEmbedding")


def rotary_embedding(opset_version: int) -> ir.Function:
    """Return the body of com.microsoft's RotaryEmbedding for `opset_version`."""

    def body(
        op: OpBuilder,
        x: ir.Value,
        position_ids: ir.Value,
        cos_cache: ir.Value,
        sin_cache: ir.Value,
    ) -> Any:
        half = op.Shape(cos_cache, start=1)
        rotary = op.Add(half, half)
        positions = _positions(op, x, position_ids)
        # Both layouts read as [batch, d1, d2, head_size], of which one is the sequence.
        heads = op.Reshape(
            x,
            op.Concat(op.Shape(x, end=2), _ints(op, -1), _head_size(op, x, rotary), axis=0),
        )
        angles = _angle_shape(op, x, half)
        cos = op.Reshape(op.Gather(cos_cache, positions), angles)
        sin = op.Reshape(op.Gather(sin_cache, positions), angles)
        first, second, merged = _channels(op, half, rotary)
        left, right = op.Gather(heads, first, axis=3), op.Gather(heads, second, axis=3)
        turned = op.Concat(
            op.Sub(op.Mul(left, cos), op.Mul(right, sin)),
            op.Add(op.Mul(right, cos), op.Mul(left, sin)),
            axis=3,
        )
        rest = op.Slice(heads, rotary, _ints(op, 2**31 - 1), _ints(op, 3))
        result = op.Concat(op.Gather(turned, merged, axis=3), rest, axis=3)
        return op.Reshape(result, op.Shape(x))

    attributes = [
        ir.AttrInt64(name, 0) for name in ("interleaved", "num_heads", "rotary_embedding_dim")
    ]
    return make_function(
        ROTARY_EMBEDDING,
        ["input", "position_ids", "cos_cache", "sin_cache"],
        ["output"],
        attributes,
        body,
        opset_version,
    )


def _positions(op: OpBuilder, x: ir.Value, position_ids: ir.Value) -> Any:
    """Return `[batch, sequence]`; a single first position counts up along the sequence."""
    length = op.Shape(x, start=-2, end=-1)
    counted = op.Range(_int(op, 0), op.Squeeze(length), _int(op, 1))
    # Shape of the shape: 1 where position_ids has rank 1.
    single = op.Cast(op.Equal(op.Shape(op.Shape(position_ids)), _ints(op, 1)), to=ir.DataType.INT64)
    return op.Expand(
        op.Add(position_ids, op.Mul(counted, single)),
        op.Concat(op.Shape(x, end=1), length, axis=0),
    )


def _head_size(op: OpBuilder, x: ir.Value, rotary: ir.Value) -> Any:
    """Return the number of channels of a head, as a one-element vector."""
    num_heads = int_attribute(op, "num_heads")
    last = op.Shape(x, start=-1)
    divided = op.Where(
        op.Greater(num_heads, _int(op, 0)),
        op.Div(last, op.Max(num_heads, _int(op, 1))),
        rotary,
    )
    return op.Where(_is_rank_3(op, x), divided, last)


def _angle_shape(op: OpBuilder, x: ir.Value, half: ir.Value) -> Any:
    """Return `[batch, sequence, 1, half]` for rank 3, `[batch, 1, sequence, half]` for rank 4."""
    length, one = op.Shape(x, start=-2, end=-1), _ints(op, 1)
    is_rank_3 = _is_rank_3(op, x)
    return op.Concat(
        op.Shape(x, end=1),
        op.Where(is_rank_3, length, one),
        op.Where(is_rank_3, one, length),
        half,
        axis=0,
    )


def _channels(
    op: OpBuilder, half: ir.Value, rotary: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the channels of both parts of each pair, and the order that puts them back.

    Interleaved pairs are (2i, 2i + 1), others (i, half + i). The third value tells, for each
    channel of the result, its place in the concatenation of first and second parts.
    """
    interleaved = int_attribute(op, "interleaved")
    two = _int(op, 2)
    pair = op.Range(_int(op, 0), op.Squeeze(half), _int(op, 1))
    first = op.Mul(pair, op.Add(interleaved, _int(op, 1)))
    second = op.Add(first, op.Where(op.Equal(interleaved, _int(op, 0)), half, _ints(op, 1)))
    channel = op.Range(_int(op, 0), op.Squeeze(rotary), _int(op, 1))
    woven = op.Add(op.Mul(op.Mod(channel, two), half), op.Div(channel, two))
    merged = op.Where(op.Equal(interleaved, _int(op, 0)), channel, woven)
    return first, second, merged


def _is_rank_3(op: OpBuilder, x: ir.Value) -> Any:
    return op.Equal(op.Shape(op.Shape(x)), _ints(op, 3))


def _int(op: OpBuilder, value: int) -> Any:
    return op.Constant(value_int=value)


def _ints(op: OpBuilder, *values: int) -> Any:
    return op.Constant(value_ints=list(values))
