"""Multi-head latent attention: keys and values made of one narrow vector a token."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import ArchitectureConfig
from mobius_components.latent_attention_config import LatentAttentionConfig
from mobius_components.layers.attention import score_attributes
from mobius_components.layers.context import LayerContext
from mobius_components.layers.linear import Linear
from mobius_components.layers.norm import RMSNorm
from mobius_components.layers.state import KeyValue, LayerState, StateSpec, key_value_specs


class LatentAttention(nn.Module):
    """Latent attention with a cache of whole keys and values, `[B, S, hidden]` -> the same.

    Source: https://arxiv.org/abs/2405.04434, `transformers` `DeepseekV3Attention`.
    """

    def __init__(self, config: ArchitectureConfig, layer: int) -> None:
        super().__init__()
        del layer  # all are alike
        latent = _latent(config)
        hidden, heads = config.hidden_size, config.num_attention_heads
        narrow, queries = latent.q_lora_rank, heads * latent.qk_head_dim
        bias, eps = config.attention_bias, latent.norm_eps
        self.q_proj = Linear(hidden, queries) if narrow is None else None
        self.q_a_proj = None if narrow is None else Linear(hidden, narrow, bias=bias)
        self.q_a_layernorm = None if narrow is None else RMSNorm(narrow, eps)
        self.q_b_proj = None if narrow is None else Linear(narrow, queries)
        rank = latent.kv_lora_rank
        self.kv_a_proj_with_mqa = Linear(hidden, rank + latent.qk_rope_head_dim, bias=bias)
        self.kv_a_layernorm = RMSNorm(rank, eps)
        self.kv_b_proj = Linear(rank, heads * (latent.qk_nope_head_dim + latent.v_head_dim))
        self.o_proj = Linear(heads * latent.v_head_dim, hidden, bias=config.attention_output_bias)
        made_by = ("q_proj",) if narrow is None else ("q_a_proj", "q_a_layernorm", "q_b_proj")
        self._query_made_by = made_by
        self._config, self._latent = config, latent

    @staticmethod
    def states(config: ArchitectureConfig, layer: int) -> tuple[StateSpec, ...]:
        """Return the specs of keys and values, whose heads differ in size."""
        del layer
        latent = _latent(config)
        return key_value_specs(config.num_attention_heads, latent.qk_head_dim, latent.v_head_dim)

    def forward(
        self, op: OpBuilder, hidden_states: ir.Value, context: LayerContext, past: LayerState
    ) -> tuple[Any, KeyValue]:
        """Return the attended states and the grown cache.

        Args:
            op: Builder.
            hidden_states: `[B, S, hidden]`.
            context: With a mask and a rotation.
            past: Keys and values before these tokens.
        """
        heads, size = self._config.num_attention_heads, self._latent.v_head_dim
        query = self._query(op, hidden_states, context)
        key, value = self._key_value(op, hidden_states, context)
        attended, *present = op.Attention(
            query, key, value, context.mask, *past, **score_attributes(self._config), _outputs=3
        )
        merged = op.Reshape(op.Transpose(attended, perm=[0, 2, 1, 3]), [0, 0, heads * size])
        return self.o_proj(op, merged), KeyValue(*present)

    def _query(self, op: OpBuilder, x: ir.Value, context: LayerContext) -> Any:
        """Return `[B, heads, S, qk_head_dim]`."""
        latent = self._latent
        for name in self._query_made_by:
            x = getattr(self, name)(op, x)
        if context.temperature is not None:
            x = op.Mul(x, context.temperature)
        sizes = [latent.qk_nope_head_dim, latent.qk_rope_head_dim]
        content, position = _split(op, self._heads(op, x, latent.qk_head_dim), sizes)
        return op.Concat(content, _rotated(op, position, context), axis=3)

    def _key_value(self, op: OpBuilder, x: ir.Value, context: LayerContext) -> tuple[Any, Any]:
        """Return `[B, heads, S, qk_head_dim]` and `[B, heads, S, v_head_dim]`."""
        latent, heads = self._latent, self._config.num_attention_heads
        sizes = [latent.kv_lora_rank, latent.qk_rope_head_dim]
        narrow, position = _split(op, self.kv_a_proj_with_mqa(op, x), sizes)
        sizes = [latent.qk_nope_head_dim, latent.v_head_dim]
        expanded = self.kv_b_proj(op, self.kv_a_layernorm(op, narrow))
        content, value = _split(op, self._heads(op, expanded, sum(sizes)), sizes)
        shared = _rotated(op, op.Unsqueeze(position, [1]), context)
        return op.Concat(content, op.Expand(shared, [1, heads, 1, 1]), axis=3), value

    def _heads(self, op: OpBuilder, x: ir.Value, size: int) -> Any:
        """`[B, S, heads * size]` -> `[B, heads, S, size]`."""
        split = op.Reshape(x, [0, 0, self._config.num_attention_heads, size])
        return op.Transpose(split, perm=[0, 2, 1, 3])


def _latent(config: ArchitectureConfig) -> LatentAttentionConfig:
    assert config.latent_attention is not None  # a layer of this kind needs it
    return config.latent_attention


def _rotated(op: OpBuilder, x: ir.Value, context: LayerContext) -> Any:
    return x if context.rotation is None else context.rotation.rotate_heads(op, x)


def _split(op: OpBuilder, x: ir.Value, sizes: list[int]) -> tuple[Any, Any]:
    """Split the last axis in two."""
    first, second = op.Split(x, sizes, axis=-1, _outputs=2)
    return first, second
