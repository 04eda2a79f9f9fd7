"""`TokenOrder`: rows with their real tokens in front, as mixers with a state need them.

Such a mixer must not see padding: its convolution reaches the tokens before, and its state is what
the next call begins with. With the real tokens of a row in front and the padding behind, both are
right wherever the padding was: a token's predecessors are the slots before it, and what comes
behind the real tokens is made an update that changes nothing.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

_END = 2**31 - 1


class TokenOrder:
    """Which slot each token of a call has with the real ones in front.

    Attributes:
        count: Real tokens of each row in this call, int64 `[B, 1]`.
    """

    def __init__(self, op: OpBuilder, attention_mask: ir.Value, position_ids: ir.Value) -> None:
        """Find the order.

        Args:
            op: Builder.
            attention_mask: int64 `[B, T]`, 1 for a real token; the last `S` are those of the call.
            position_ids: int64 `[B, S]`; only their shape is read.
        """
        length = op.Shape(position_ids, start=1, end=2)
        real = op.Slice(attention_mask, op.Neg(length), [_END], [1])
        seen = op.CumSum(real, 1)
        self.count = op.Slice(seen, [-1], [_END], [1])
        slot = op.Range(0, op.Squeeze(length), 1)
        # Real tokens in their order, then the padding in its own.
        goal = op.Where(op.Equal(real, 1), op.Sub(seen, 1), op.Add(self.count, op.Sub(slot, seen)))
        origin = op.ScatterElements(goal, goal, op.Expand(slot, op.Shape(position_ids)), axis=1)
        rows = op.Range(0, op.Squeeze(op.Shape(position_ids, start=0, end=1)), 1)
        first = op.Mul(op.Unsqueeze(rows, [1]), length)
        self._origin, self._goal = op.Add(origin, first), op.Add(goal, first)
        self._valid = op.Less(op.Unsqueeze(slot, [0]), self.count)
        for value in (self._origin, self._goal, self._valid):
            value.shape = position_ids.shape

    def to_front(self, op: OpBuilder, x: ir.Value) -> Any:
        """Return `x`, `[B, S, width]`, with the real tokens of each row in front."""
        return self._take(op, x, self._origin)

    def restore(self, op: OpBuilder, x: ir.Value) -> Any:
        """Undo `to_front`."""
        return self._take(op, x, self._goal)

    def positions_to_front(self, op: OpBuilder, position_ids: ir.Value) -> Any:
        """Return int64 `[B, S]` as `to_front` does."""
        return op.Gather(op.Reshape(position_ids, [-1]), self._origin, axis=0)

    def valid(self, op: OpBuilder) -> Any:
        """Return which slots hold real tokens once these are in front, bool `[B, S, 1]`."""
        return op.Unsqueeze(self._valid, [2])

    def weight(self, op: OpBuilder) -> Any:
        """Return 1 where `valid` is true and 0 elsewhere, float32 `[B, S, 1]`."""
        return op.Cast(self.valid(op), to=ir.DataType.FLOAT)

    def last(self, op: OpBuilder, history: ir.Value, channels: int, length: int) -> Any:
        """Return the last real slots, `[B, channels, length]`, of what came before and this call.

        Args:
            op: Builder.
            history: `[B, channels, length + S]`, `length` slots before the call and then those of
                the call, real ones in front.
            channels: Size of the axis of channels.
            length: Number of slots.
        """
        slots = op.Add(self.count, list(range(length)))
        batch = op.Shape(self.count, start=0, end=1)
        shape = op.Concat(batch, [channels, length], axis=0)
        return op.GatherElements(history, op.Expand(op.Unsqueeze(slots, [1]), shape), axis=2)

    def _take(self, op: OpBuilder, x: ir.Value, slots: ir.Value) -> Any:
        assert x.shape is not None  # a layer's output has one
        return op.Gather(op.Reshape(x, [-1, x.shape[-1]]), slots, axis=0)
