"""Self-attention with grouped key/value heads and a growing cache."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import ArchitectureConfig
from mobius_components.layers.context import LayerContext
from mobius_components.layers.linear import Linear
from mobius_components.layers.norm import EachHeadNorm, make_norm
from mobius_components.layers.state import KeyValue, LayerState, StateSpec, key_value_specs


class Attention(nn.Module):
    """Grouped-query self-attention, `[B, S, hidden]` -> `[B, S, hidden]`.

    Emits `ai.onnx::RotaryEmbedding` and `ai.onnx::Attention` on 3-D tensors, the mask being given.
    Source: `transformers` `LlamaAttention`, `Qwen3Attention` (norms of queries and keys).
    """

    def __init__(self, config: ArchitectureConfig, layer: int) -> None:
        super().__init__()
        del layer  # all are alike but for their context
        hidden, size = config.hidden_size, config.head_size
        heads, kv_heads = config.num_attention_heads, config.kv_heads
        self.q_proj = Linear(hidden, heads * size, bias=config.attention_bias)
        self.k_proj = Linear(hidden, kv_heads * size, bias=config.attention_bias)
        self.v_proj = Linear(hidden, kv_heads * size, bias=config.attention_bias)
        self.o_proj = Linear(heads * size, hidden, bias=config.attention_output_bias)
        self.q_norm = _make_qk_norm(config, heads)
        self.k_norm = _make_qk_norm(config, kv_heads)
        self._config = config

    @staticmethod
    def states(config: ArchitectureConfig, layer: int) -> tuple[StateSpec, ...]:
        """Return the specs of keys and values."""
        del layer
        return key_value_specs(config.kv_heads, config.head_size, config.head_size)

    def forward(
        self, op: OpBuilder, hidden_states: ir.Value, context: LayerContext, past: LayerState
    ) -> tuple[Any, KeyValue]:
        """Return the attended states and the grown cache.

        Args:
            op: Builder.
            hidden_states: `[B, S, hidden]`.
            context: With a mask.
            past: Keys and values before these tokens.
        """
        rotation = context.rotation
        config, size = self._config, self._config.head_size
        query = self.q_proj(op, hidden_states)
        key = self.k_proj(op, hidden_states)
        value = self.v_proj(op, hidden_states)
        if config.qkv_clip is not None:
            low, high = -config.qkv_clip, config.qkv_clip
            query, key, value = (op.Clip(each, low, high) for each in (query, key, value))
        if not config.qk_norm_after_rotary:
            query, key = self._norm(op, query, key)
        if rotation is not None:
            if rotation.temperature is not None:
                query = op.Mul(query, rotation.temperature)
            query = rotation(op, query, config.num_attention_heads, size)
            key = rotation(op, key, config.kv_heads, size)
        if config.qk_norm_after_rotary:
            query, key = self._norm(op, query, key)
        attended, present_key, present_value = op.Attention(
            query,
            key,
            value,
            context.mask,
            *past,
            q_num_heads=config.num_attention_heads,
            kv_num_heads=config.kv_heads,
            **_optional(scale=config.attention_scale, softcap=config.attn_logit_softcapping),
            _outputs=3,
        )
        return self.o_proj(op, attended), KeyValue(present_key, present_value)

    def _norm(self, op: OpBuilder, query: ir.Value, key: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return queries and keys normalised, as they are where the model has no such norm."""
        config, size = self._config, self._config.head_size
        if self.q_norm is None or self.k_norm is None:
            return query, key
        if config.qk_norm == "full":
            return self.q_norm(op, query), self.k_norm(op, key)
        return (
            _norm_heads(op, self.q_norm, query, config.num_attention_heads, size),
            _norm_heads(op, self.k_norm, key, config.kv_heads, size),
        )


def _make_qk_norm(config: ArchitectureConfig, heads: int) -> nn.Module | None:
    if config.qk_norm is None:
        return None
    if config.qk_norm == "each_head":
        return EachHeadNorm(heads, config.head_size, config.rms_norm_eps)
    width = config.head_size * (heads if config.qk_norm == "full" else 1)
    return make_norm(config.qk_norm_type, width, config.rms_norm_eps)


def _norm_heads(
    op: OpBuilder, norm: nn.Module, x: ir.Value, heads: int, head_size: int
) -> ir.Value:
    """Norm each head of `x`, `[B, S, heads * head_size]`."""
    split = op.Reshape(x, [0, 0, heads, head_size])
    normed: ir.Value = op.Reshape(norm(op, split), [0, 0, heads * head_size])
    return normed


def _optional(**attributes: float | None) -> dict[str, float]:
    """Return the attributes that have a value: an operator's default stays unwritten."""
    return {name: value for name, value in attributes.items() if value is not None}
