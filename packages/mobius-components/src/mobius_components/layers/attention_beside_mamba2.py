"""`AttentionBesideMamba2`: attention and a state space of the same normed stream, added."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import ArchitectureConfig
from mobius_components.layers.attention import Attention
from mobius_components.layers.context import LayerContext
from mobius_components.layers.mamba2 import Mamba2
from mobius_components.layers.scaled import scaled
from mobius_components.layers.state import LayerState, StateSpec
from mobius_components.multiplier_config import MultiplierConfig

_CACHES = 2


class AttentionBesideMamba2(nn.Module):
    """Both of `[B, S, hidden]`, in parallel. Source: `transformers` `FalconH1DecoderLayer`."""

    def __init__(self, config: ArchitectureConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mamba = Mamba2(config, layer)
        self._factors = config.multipliers or MultiplierConfig()

    @staticmethod
    def states(config: ArchitectureConfig, layer: int) -> tuple[StateSpec, ...]:
        """Return the specs of keys and values, then those of the state space."""
        return (*Attention.states(config, layer), *Mamba2.states(config, layer))

    def forward(
        self, op: OpBuilder, x: ir.Value, context: LayerContext, past: LayerState
    ) -> tuple[Any, LayerState]:
        """Return what is added to the stream, and the states after it."""
        factors = self._factors
        cache, state = past[:_CACHES], past[_CACHES:]
        scanned, state = self.mamba(op, context.tokens.to_front(op, x), context, state)
        scanned = context.tokens.restore(op, scanned)
        attended, cache = self.self_attn(op, scaled(op, x, factors.attention_input), context, cache)
        added = op.Add(
            scaled(op, scanned, factors.mamba2_output),
            scaled(op, attended, factors.attention_output),
        )
        return added, (*cache, *state)
