"""`CausalConv`: each channel's last few tokens, weighed, `[B, S, channels]` -> the same."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.activations import ACTIVATIONS
from mobius_components.layers.state import StateSpec
from mobius_components.layers.token_order import TokenOrder
from mobius_components.parameter import Parameter
from mobius_ir_rules.values import MICROSOFT

_FUSED = ("silu", "swish")


def conv_state(channels: int, taps: int) -> StateSpec:
    """Return the spec of what a `CausalConv` carries: the inputs of the last `taps - 1` tokens."""
    return StateSpec("conv_state", ("batch", channels, taps - 1))


class CausalConv(nn.Module):
    """A depthwise convolution over a token and those before it.

    Emits `com.microsoft::CausalConvWithState`. The operator's own `present_state` counts slots, so
    it is not used: the state is taken from where a row's real tokens end. Without a bias it adds
    zeros: MLX takes the operator with a state and a bias only.
    Source: `transformers` `causal_conv1d_fn`, `causal_conv1d_update`.
    """

    def __init__(
        self, channels: int, taps: int, *, bias: bool, activation: str | None = None
    ) -> None:
        super().__init__()
        self.weight = Parameter([channels, 1, taps])
        self.bias = Parameter([channels]) if bias else None
        self._channels = channels
        self._taps = taps
        self._activation = activation

    def forward(
        self, op: OpBuilder, x: ir.Value, tokens: TokenOrder, past: ir.Value
    ) -> tuple[Any, Any]:
        """Return the activated convolution and the state after it.

        Args:
            op: Builder.
            x: `[B, S, channels]`, real tokens in front.
            tokens: Where they end.
            past: `[B, channels, taps - 1]`.
        """
        fused = self._activation in _FUSED
        turned = op.Transpose(x, perm=[0, 2, 1])
        bias = self.bias
        if bias is None:
            bias = op.Constant(value=ir.tensor([0.0] * self._channels, dtype=x.dtype))
        y, own_state = op.CausalConvWithState(
            turned,
            self.weight,
            bias,
            past,
            activation="silu" if fused else "none",
            _domain=MICROSOFT,
            _version=1,
            _outputs=2,
        )
        # There is no schema to infer from; what follows needs to know the types.
        y.type, y.shape = turned.type, turned.shape
        own_state.type, own_state.shape = past.type, past.shape
        history = op.Concat(past, turned, axis=2)
        present = tokens.last(op, history, self._channels, self._taps - 1)
        y = op.Transpose(y, perm=[0, 2, 1])
        if self._activation is not None and not fused:
            y = ACTIVATIONS[self._activation](op, y)
        return y, present
