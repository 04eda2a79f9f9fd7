"""`Stream`: the residual stream, in the order of tokens that the next layer needs."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_components.layers.mixers import Mixer
from mobius_components.layers.token_order import TokenOrder


class Stream:
    """The stream between layers.

    Layers that attend need tokens in the order that they are given in, which the cache has too;
    layers with a state need the real ones in front; others take any order. It is changed only
    where one kind follows the other.

    Attributes:
        value: `[B, S, hidden]`.
    """

    def __init__(self, value: ir.Value, order: TokenOrder | None) -> None:
        """Begin with `value` in the given order; `order` is `None` where no layer needs another."""
        self.value = value
        self._order = order
        self._in_front = False

    def given(self, op: OpBuilder, mixer: Mixer) -> Any:
        """Return the stream as `mixer` needs it."""
        if mixer.attends:
            return self.in_given_order(op)
        if mixer.recurs and not self._in_front:
            assert self._order is not None  # a model with such a layer has one
            self.value = self._order.to_front(op, self.value)
            self._in_front = True
        return self.value

    def in_given_order(self, op: OpBuilder) -> Any:
        """Return the stream in the order that tokens were given in."""
        if self._in_front:
            assert self._order is not None
            self.value = self._order.restore(op, self.value)
            self._in_front = False
        return self.value
