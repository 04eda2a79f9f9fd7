"""`ShortConv`: a gated convolution over the last few tokens."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import ArchitectureConfig
from mobius_components.layers.causal_conv import CausalConv, conv_state
from mobius_components.layers.context import LayerContext
from mobius_components.layers.linear import Linear
from mobius_components.layers.state import LayerState, StateSpec


class ShortConv(nn.Module):
    """`out(C * conv(B * x))`, where B, C and x are projected, `[B, S, hidden]` -> the same.

    Source: `transformers` `Lfm2ShortConv`.
    """

    def __init__(self, config: ArchitectureConfig, layer: int) -> None:
        super().__init__()
        del layer  # all are alike
        assert config.short_conv is not None  # checked by the configuration
        hidden, bias = config.hidden_size, config.short_conv.bias
        self.in_proj = Linear(hidden, 3 * hidden, bias=bias)
        self.conv = CausalConv(hidden, config.short_conv.taps, bias=bias)
        self.out_proj = Linear(hidden, hidden, bias=bias)

    @staticmethod
    def states(config: ArchitectureConfig, layer: int) -> tuple[StateSpec, ...]:
        """Return the spec of the convolution's state."""
        del layer
        assert config.short_conv is not None
        return (conv_state(config.hidden_size, config.short_conv.taps),)

    def forward(
        self, op: OpBuilder, x: ir.Value, context: LayerContext, past: LayerState
    ) -> tuple[Any, LayerState]:
        """Return what is added to the stream, and the state after it."""
        before, after, value = op.Split(self.in_proj(op, x), axis=-1, num_outputs=3, _outputs=3)
        convolved, present = self.conv(op, op.Mul(before, value), context.tokens, *past)
        return self.out_proj(op, op.Mul(after, convolved)), (present,)
