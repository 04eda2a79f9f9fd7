"""`LightningAttention`: linear attention whose heads forget at fixed rates."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.activations import ACTIVATIONS
from mobius_components.config import ArchitectureConfig
from mobius_components.layers.context import LayerContext
from mobius_components.layers.linear import Linear
from mobius_components.layers.norm import RMSNorm
from mobius_components.layers.recurrence import (
    linear_attention,
    recurrent_state,
    to_float,
    to_type_of,
)
from mobius_components.layers.state import LayerState, StateSpec

_NORM_EPS = 1e-6


class LightningAttention(nn.Module):
    """Activated projection, linear attention, norm and gate, `[B, S, hidden]` -> the same.

    Source: https://arxiv.org/abs/2401.04658, `transformers` `MiniMaxLightningAttention`, which
    stores queries, keys and values head by head; here they are one after the other.
    """

    def __init__(self, config: ArchitectureConfig, layer: int) -> None:
        super().__init__()
        hidden, heads = config.hidden_size, config.num_attention_heads
        width = heads * config.head_size
        self.qkv_proj = Linear(hidden, 3 * width)
        self.norm = RMSNorm(width, _NORM_EPS)
        self.output_gate = Linear(hidden, width)
        self.out_proj = Linear(width, hidden)
        self._heads = heads
        self._activation = ACTIVATIONS[config.hidden_act]
        self._rates = decay_rates(heads, layer, config.num_hidden_layers)

    @staticmethod
    def states(config: ArchitectureConfig, layer: int) -> tuple[StateSpec, ...]:
        """Return the spec of the attention's state."""
        del layer
        size = config.head_size
        return (recurrent_state(config.num_attention_heads, size, size),)

    def forward(
        self, op: OpBuilder, x: ir.Value, context: LayerContext, past: LayerState
    ) -> tuple[Any, LayerState]:
        """Return what is added to the stream, and the state after it."""
        (past_state,) = past
        mixed = to_float(op, self._activation(op, self.qkv_proj(op, x)))
        query, key, value = op.Split(mixed, axis=-1, num_outputs=3, _outputs=3)
        # Padding behind the real tokens neither decays nor writes.
        weight = context.tokens.weight(op)
        rates = op.initializer(ir.tensor(-self._rates), name="decay")
        y, present = linear_attention(
            op,
            query,
            key,
            op.Mul(value, weight),
            past_state,
            op.Mul(weight, rates),
            query_heads=self._heads,
            value_heads=self._heads,
            scale=1.0,
        )
        normed = self.norm(op, to_type_of(op, y, x))
        gated = op.Mul(op.Sigmoid(self.output_gate(op, x)), normed)
        return self.out_proj(op, gated), (present,)


def decay_rates(heads: int, layer: int, layers: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return how fast each head forgets, float32 `[heads]`.

    Source: `transformers` `MiniMaxLightningAttention.get_slope_rate`.
    """
    base = np.float32(2.0 ** (-8.0 / heads))
    factor = 1 - layer / (layers - 1 + 1e-5) + 1e-5
    return np.power(base, np.arange(1, heads + 1, dtype=np.float32)) * np.float32(factor)
