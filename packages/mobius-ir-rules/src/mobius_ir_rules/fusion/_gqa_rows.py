"""What `GroupQueryAttention` is told of the rows of a batch: lengths, and what is added to scores.

The operator has two ways to take a padded batch.

* **By lengths**: `seqlens_k` is the number of real tokens of each row. The kernel keeps them next
  to each other in the cache and computes rotary positions from their number. That is right where
  prompts are padded on the right; left padding cannot be said.
* **By bias**: every row is as long as the padding mask is wide, and `attention_bias` hides what a
  query may not see, padding included. The cache is laid out as `Attention` lays it out, whatever
  the padding, and rotation has to come before.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.lowering._constants import make_scalar
from mobius_ir_rules.values import make, make_int64s

_INT32, _INT64 = ir.DataType.INT32, ir.DataType.INT64


def real_lengths(op: RewriterContext, attention_mask: ir.Value) -> ir.Value:
    """Return seqlens_k: the number of real tokens of each row less one, int32 `[B]`."""
    shape = ir.Shape([_batch(attention_mask)])
    axis = make_int64s(op, [1])
    attributes = {"keepdims": 0}
    lengths = make(op, "ReduceSum", [attention_mask, axis], (_INT64, shape), attributes=attributes)
    return _to_int32(op, _less_one(op, lengths))


def full_lengths(op: RewriterContext, attention_mask: ir.Value) -> ir.Value:
    """Return seqlens_k of rows that are full: the width of the mask less one, int32 `[B]`."""
    rows = make(op, "Shape", [attention_mask], (_INT64, [1]), attributes={"start": 0, "end": 1})
    last = _less_one(op, _width(op, attention_mask))
    shape = ir.Shape([_batch(attention_mask)])
    return _to_int32(op, make(op, "Expand", [last, rows], (_INT64, shape)))


def total_length(op: RewriterContext, attention_mask: ir.Value) -> ir.Value:
    """Return total_sequence_length: the width of the padding mask, an int32 scalar."""
    return _to_int32(op, make(op, "Squeeze", [_width(op, attention_mask)], (_INT64, [])))


def attention_bias(op: RewriterContext, mask: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return 0 where `mask` (bool `[B, 1, S, T]`) is true, the lowest number elsewhere.

    Not minus infinity, of which some kernels make NaN.
    """
    visible, hidden = (make_scalar(op, number, dtype) for number in (0.0, float(dtype.min)))
    return make(op, "Where", [mask, visible, hidden], (dtype, mask.shape))


def _batch(attention_mask: ir.Value) -> int | ir.SymbolicDim | None:
    return None if attention_mask.shape is None else attention_mask.shape[0]


def _width(op: RewriterContext, attention_mask: ir.Value) -> ir.Value:
    return make(op, "Shape", [attention_mask], (_INT64, [1]), attributes={"start": 1, "end": 2})


def _less_one(op: RewriterContext, x: ir.Value) -> ir.Value:
    return make(op, "Sub", [x, make_int64s(op, [1])], (_INT64, x.shape))


def _to_int32(op: RewriterContext, x: ir.Value) -> ir.Value:
    return make(op, "Cast", [x], (_INT32, x.shape), attributes={"to": _INT32})
