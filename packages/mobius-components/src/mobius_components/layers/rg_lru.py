"""`RgLru`: a gated linear recurrence, one number of state a channel."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.activations import ACTIVATIONS
from mobius_components.config import ArchitectureConfig
from mobius_components.layers.causal_conv import CausalConv, conv_state
from mobius_components.layers.context import LayerContext
from mobius_components.layers.linear import Linear
from mobius_components.layers.recurrence import (
    gated_recurrence,
    recurrent_state,
    to_float,
    to_type_of,
)
from mobius_components.layers.state import LayerState, StateSpec
from mobius_components.linear_attention_config import RgLruConfig
from mobius_components.parameter import Parameter

_SHARPNESS = -8.0


class RgLru(nn.Module):
    """Two branches, one through convolution and recurrence, `[B, S, hidden]` -> the same.

    Source: `transformers` `RecurrentGemmaRecurrentBlock`.
    """

    def __init__(self, config: ArchitectureConfig, layer: int) -> None:
        super().__init__()
        del layer  # all are alike
        lru = _settings(config)
        hidden, width = config.hidden_size, lru.width
        self.linear_y = Linear(hidden, width, bias=True)
        self.linear_x = Linear(hidden, width, bias=True)
        self.linear_out = Linear(width, hidden, bias=True)
        self.conv_1d = CausalConv(width, lru.conv_taps, bias=True)
        self.rg_lru = GatedUnit(lru)
        self._activation = ACTIVATIONS[lru.activation]

    @staticmethod
    def states(config: ArchitectureConfig, layer: int) -> tuple[StateSpec, ...]:
        """Return the specs of the states of convolution and recurrence."""
        del layer
        lru = _settings(config)
        return (conv_state(lru.width, lru.conv_taps), recurrent_state(lru.width))

    def forward(
        self, op: OpBuilder, x: ir.Value, context: LayerContext, past: LayerState
    ) -> tuple[Any, LayerState]:
        """Return what is added to the stream, and the states after it."""
        past_conv, past_state = past
        other = self._activation(op, self.linear_y(op, x))
        value, present_conv = self.conv_1d(op, self.linear_x(op, x), context.tokens, past_conv)
        value, present_state = self.rg_lru(op, value, context, past_state)
        return self.linear_out(op, op.Mul(value, other)), (present_conv, present_state)


class GatedUnit(nn.Module):
    """The recurrence, `[B, S, width]` -> the same. Source: `transformers` `RecurrentGemmaRglru`."""

    def __init__(self, lru: RgLruConfig) -> None:
        super().__init__()
        blocks, size = lru.blocks, lru.width // lru.blocks
        self.recurrent_param = Parameter([lru.width], ir.DataType.FLOAT)
        self.input_gate_weight = Parameter([blocks, size, size])
        self.input_gate_bias = Parameter([blocks, size])
        self.recurrent_gate_weight = Parameter([blocks, size, size])
        self.recurrent_gate_bias = Parameter([blocks, size])
        self._blocks, self._size = blocks, size

    def forward(
        self, op: OpBuilder, x: ir.Value, context: LayerContext, past: ir.Value
    ) -> tuple[Any, Any]:
        """Return the channels after each token, and the state after the last."""
        tokens = context.tokens
        gate = op.Sigmoid(self._blockwise(op, x, self.input_gate_weight, self.input_gate_bias))
        rate = op.Sigmoid(
            to_float(
                op,
                self._blockwise(op, x, self.recurrent_gate_weight, self.recurrent_gate_bias),
            )
        )
        decay = op.Mul(op.Mul(rate, op.Softplus(self.recurrent_param)), _SHARPNESS)
        # The first token of a row is taken as it is: there is no state that it would have to
        # leave room for.
        positions = tokens.positions_to_front(op, context.position_ids)
        first = op.Unsqueeze(op.Equal(positions, 0), [2])
        room = op.Sqrt(op.Sub(1.0, op.Exp(op.Mul(decay, 2.0))))
        scale = op.Where(first, 1.0, room)
        value = op.Mul(to_float(op, op.Mul(x, gate)), scale)
        # Padding behind the real tokens neither decays nor writes.
        weight = tokens.weight(op)
        y, present = gated_recurrence(op, op.Mul(value, weight), op.Mul(decay, weight), past)
        return to_type_of(op, y, x), present

    def _blockwise(self, op: OpBuilder, x: ir.Value, weight: ir.Value, bias: ir.Value) -> Any:
        """Return `x` with each block of channels projected by its own matrix."""
        blocks = op.Transpose(op.Reshape(x, [0, 0, self._blocks, self._size]), perm=[2, 0, 1, 3])
        rows = op.Reshape(blocks, [self._blocks, -1, self._size])
        projected = op.Add(op.MatMul(rows, weight), op.Unsqueeze(bias, [1]))
        apart = op.Reshape(projected, op.Shape(blocks))
        width = self._blocks * self._size
        return op.Reshape(op.Transpose(apart, perm=[1, 2, 0, 3]), [0, 0, width])


def _settings(config: ArchitectureConfig) -> RgLruConfig:
    assert config.rg_lru is not None  # checked by the configuration
    return config.rg_lru
