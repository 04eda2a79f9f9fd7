"""Attention that reads the keys and values of an earlier layer."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import ArchitectureConfig
from mobius_components.layers.attention import make_head_norm, norm_heads, score_attributes
from mobius_components.layers.context import LayerContext
from mobius_components.layers.linear import Linear
from mobius_components.layers.state import LayerState, StateSpec


class SharedAttention(nn.Module):
    """Queries of its own, keys and values of another layer, `[B, S, hidden]` -> the same.

    Keys and values are those of all tokens so far, so this layer carries nothing.
    Source: `transformers` `Gemma3nTextAttention`, `Gemma4TextAttention` where they reuse.
    """

    def __init__(self, config: ArchitectureConfig, layer: int) -> None:
        super().__init__()
        hidden, heads = config.hidden_size, config.num_attention_heads
        _, size = config.heads(layer)
        self.q_proj = Linear(hidden, heads * size, bias=config.attention_bias)
        self.o_proj = Linear(heads * size, hidden, bias=config.attention_output_bias)
        self.q_norm = make_head_norm(config, layer, heads)
        self._config, self._size = config, size

    @staticmethod
    def states(config: ArchitectureConfig, layer: int) -> tuple[StateSpec, ...]:
        """Return no specs."""
        del config, layer
        return ()

    def forward(
        self, op: OpBuilder, hidden_states: ir.Value, context: LayerContext, past: LayerState
    ) -> tuple[Any, LayerState]:
        """Return the attended states, and no cache.

        Args:
            op: Builder.
            hidden_states: `[B, S, hidden]`.
            context: With a mask, and what is shared.
            past: Nothing.
        """
        assert context.shared is not None  # the configuration names a layer
        config, size = self._config, self._size
        heads = config.num_attention_heads
        query = self.q_proj(op, hidden_states)
        if self.q_norm is not None:
            query = norm_heads(op, self.q_norm, query, heads, size)
        if context.rotation is not None:
            query = context.rotation(op, query, heads, size)
        # Keys and values are split by heads already, and the operator takes all alike.
        split = op.Transpose(op.Reshape(query, [0, 0, heads, size]), perm=[0, 2, 1, 3])
        attended = op.Attention(split, *context.shared, context.mask, **score_attributes(config))
        merged = op.Reshape(op.Transpose(attended, perm=[0, 2, 1, 3]), [0, 0, heads * size])
        return self.o_proj(op, merged), past
