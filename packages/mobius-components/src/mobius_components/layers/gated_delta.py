"""`GatedDelta`: linear attention that replaces what a key had stored, with decay."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import ArchitectureConfig
from mobius_components.layers.causal_conv import CausalConv, conv_state
from mobius_components.layers.context import LayerContext
from mobius_components.layers.gated_norm import GatedNorm
from mobius_components.layers.linear import Linear
from mobius_components.layers.recurrence import (
    linear_attention,
    recurrent_state,
    to_float,
    to_type_of,
)
from mobius_components.layers.state import LayerState, StateSpec
from mobius_components.linear_attention_config import GatedDeltaConfig
from mobius_components.parameter import Parameter

_FLOAT = ir.DataType.FLOAT
_LENGTH_EPS = 1e-6


class GatedDelta(nn.Module):
    """Projection, convolution, gated delta rule and gated norm, `[B, S, hidden]` -> the same.

    Source: `transformers` `Qwen3_5GatedDeltaNet`; `Qwen3NextGatedDeltaNet` stores its projections
    in another order. Arithmetic after the convolution is float32.
    """

    def __init__(self, config: ArchitectureConfig, layer: int) -> None:
        super().__init__()
        del layer  # all are alike
        delta = _settings(config)
        self._settings = delta
        hidden, heads = config.hidden_size, delta.value_heads
        self._sections = [delta.key_width, delta.key_width, delta.value_width]
        channels = sum(self._sections)
        self.in_proj_qkv = Linear(hidden, channels)
        self.in_proj_z = Linear(hidden, delta.value_width)
        self.in_proj_b = Linear(hidden, heads)
        self.in_proj_a = Linear(hidden, heads)
        self.conv1d = CausalConv(channels, delta.conv_taps, bias=False, activation=delta.activation)
        self.dt_bias = Parameter([heads], _FLOAT)
        self.A_log = Parameter([heads], _FLOAT)
        self.norm = GatedNorm(
            heads, delta.value_size, config.rms_norm_eps, gate_first=False, shared=True
        )
        self.out_proj = Linear(delta.value_width, hidden)

    @staticmethod
    def states(config: ArchitectureConfig, layer: int) -> tuple[StateSpec, ...]:
        """Return the specs of the states of convolution and attention."""
        del layer
        delta = _settings(config)
        return (
            conv_state(2 * delta.key_width + delta.value_width, delta.conv_taps),
            recurrent_state(delta.value_heads, delta.key_size, delta.value_size),
        )

    def forward(
        self, op: OpBuilder, x: ir.Value, context: LayerContext, past: LayerState
    ) -> tuple[Any, LayerState]:
        """Return what is added to the stream, and the states after it."""
        delta, (past_conv, past_state) = self._settings, past
        mixed, present_conv = self.conv1d(op, self.in_proj_qkv(op, x), context.tokens, past_conv)
        query, key, value = (
            to_float(op, part) for part in op.Split(mixed, self._sections, axis=-1, _outputs=3)
        )
        # Padding behind the real tokens neither decays nor writes.
        weight = context.tokens.weight(op)
        rate = op.Softplus(op.Add(to_float(op, self.in_proj_a(op, x)), self.dt_bias))
        decay = op.Mul(op.Mul(rate, op.Neg(op.Exp(self.A_log))), weight)
        beta = op.Mul(op.Sigmoid(to_float(op, self.in_proj_b(op, x))), weight)
        y, present_state = linear_attention(
            op,
            self._unit_length(op, query, "query"),
            self._unit_length(op, key, "key"),
            value,
            past_state,
            decay,
            beta,
            query_heads=delta.key_heads,
            value_heads=delta.value_heads,
            scale=delta.key_size**-0.5,
        )
        y = self.norm(op, y, to_float(op, self.in_proj_z(op, x)))
        return self.out_proj(op, to_type_of(op, y, x)), (present_conv, present_state)

    def _unit_length(self, op: OpBuilder, x: ir.Value, name: str) -> Any:
        """Return `x / sqrt(sum(x^2) + eps)` of each head: an RMS norm with constant weights."""
        size, heads = self._settings.key_size, self._settings.key_heads
        weight = ir.tensor(np.full(size, size**-0.5, np.float32))
        normed = op.RMSNormalization(
            op.Reshape(x, [0, 0, heads, size]),
            op.initializer(weight, name=f"{name}_length"),
            axis=-1,
            epsilon=_LENGTH_EPS / size,
            stash_type=int(_FLOAT),
        )
        return op.Reshape(normed, [0, 0, heads * size])


def _settings(config: ArchitectureConfig) -> GatedDeltaConfig:
    assert config.gated_delta is not None  # checked by the configuration
    return config.gated_delta
