"""Self-attention with grouped key/value heads and a growing cache."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import ArchitectureConfig
from mobius_components.layers.context import LayerContext
from mobius_components.layers.linear import Linear
from mobius_components.layers.norm import EachHeadNorm, RMSNorm, make_norm
from mobius_components.layers.state import KeyValue, LayerState, StateSpec, key_value_specs
from mobius_components.parameter import Parameter
from mobius_ir_rules.functions.sink_attention import SINK_ATTENTION


class Attention(nn.Module):
    """Grouped-query self-attention, `[B, S, hidden]` -> `[B, S, hidden]`.

    Emits `ai.onnx::RotaryEmbedding` and `ai.onnx::Attention` on 3-D tensors, the mask being given;
    `mobius.attention::SinkAttention` where the model has sinks.
    Source: `transformers` `LlamaAttention`, `Qwen3Attention` (norms of queries and keys),
    `Qwen3NextAttention` (a gate, which it stores with the queries), `GptOssAttention` (sinks),
    `Gemma4TextAttention` (norms of values, values that are the keys).
    """

    def __init__(self, config: ArchitectureConfig, layer: int) -> None:
        super().__init__()
        hidden, heads = config.hidden_size, config.num_attention_heads
        kv_heads, size = config.heads(layer)
        assert config.layer_types is not None  # resolved by the configuration
        value_is_key = config.layer_types[layer] in config.value_is_key
        self.q_proj = Linear(hidden, heads * size, bias=config.attention_bias)
        self.k_proj = Linear(hidden, kv_heads * size, bias=config.attention_bias)
        value = Linear(hidden, kv_heads * size, bias=config.attention_bias)
        self.v_proj = None if value_is_key else value
        self.o_proj = Linear(heads * size, hidden, bias=config.attention_output_bias)
        gate = Linear(hidden, heads * size, bias=config.attention_bias)
        self.gate_proj = gate if config.attention_gate else None
        self.q_norm = make_head_norm(config, layer, heads)
        self.k_norm = make_head_norm(config, layer, kv_heads)
        self.v_norm = (
            RMSNorm(size, config.rms_norm_eps, weight=False) if config.value_norm else None
        )
        self.sinks = Parameter([heads]) if config.attention_sinks else None
        self._config = config
        self._kv_heads, self._size = kv_heads, size

    @staticmethod
    def states(config: ArchitectureConfig, layer: int) -> tuple[StateSpec, ...]:
        """Return the specs of keys and values."""
        heads, size = config.heads(layer)
        return key_value_specs(heads, size, size)

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
        rotation, config, size = context.rotation, self._config, self._size
        heads, kv_heads = config.num_attention_heads, self._kv_heads
        query = self.q_proj(op, hidden_states)
        key = self.k_proj(op, hidden_states)
        value = key if self.v_proj is None else self.v_proj(op, hidden_states)
        if not config.qk_norm_after_rotary:
            query, key = self._norm(op, query, key)
        if config.qkv_clip is not None:
            low, high = -config.qkv_clip, config.qkv_clip
            query, key, value = (op.Clip(each, low, high) for each in (query, key, value))
        if context.temperature is not None:
            query = op.Mul(query, context.temperature)
        if rotation is not None:
            query = rotation(op, query, heads, size)
            key = rotation(op, key, kv_heads, size)
        if config.qk_norm_after_rotary:
            query, key = self._norm(op, query, key)
        if self.v_norm is not None:
            value = norm_heads(op, self.v_norm, value, kv_heads, size)
        attended, present = self._attend(op, query, key, value, context, past)
        if self.gate_proj is not None:
            attended = op.Mul(attended, op.Sigmoid(self.gate_proj(op, hidden_states)))
        return self.o_proj(op, attended), present

    def _attend(
        self,
        op: OpBuilder,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        context: LayerContext,
        past: LayerState,
    ) -> tuple[Any, KeyValue]:
        config = self._config
        heads = {"q_num_heads": config.num_attention_heads, "kv_num_heads": self._kv_heads}
        inputs = (query, key, value, context.mask, *past)
        if self.sinks is None:
            attributes = {**heads, **score_attributes(config)}
            attended, *present = op.Attention(*inputs, **attributes, _outputs=3)
            return attended, KeyValue(*present)
        attributes = {**heads, "scale": self._size**-0.5, **score_attributes(config)}
        domain, name = SINK_ATTENTION
        attended, *present = getattr(op, name)(
            *inputs, self.sinks, **attributes, _domain=domain, _version=1, _outputs=3
        )
        # There is no schema to infer from; what follows needs to know the types.
        attended.shape = query.shape
        for output in (attended, *present):
            output.type = query.type
        return attended, KeyValue(*present)

    def _norm(self, op: OpBuilder, query: ir.Value, key: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return queries and keys normalised, as they are where the model has no such norm."""
        config, size = self._config, self._size
        if self.q_norm is None or self.k_norm is None:
            return query, key
        if config.qk_norm == "full":
            return self.q_norm(op, query), self.k_norm(op, key)
        return (
            norm_heads(op, self.q_norm, query, config.num_attention_heads, size),
            norm_heads(op, self.k_norm, key, self._kv_heads, size),
        )


def make_head_norm(config: ArchitectureConfig, layer: int, heads: int) -> nn.Module | None:
    """Return the norm of the queries or keys of a layer, of that many heads, if it has one."""
    _, size = config.heads(layer)
    lacking = config.qk_norm_where_rotating and config.rope(layer) is None
    if config.qk_norm is None or lacking:
        return None
    if config.qk_norm == "each_head":
        return EachHeadNorm(heads, size, config.rms_norm_eps)
    width = size * (heads if config.qk_norm == "full" else 1)
    return make_norm(config.qk_norm_type, width, config.rms_norm_eps)


def norm_heads(op: OpBuilder, norm: nn.Module, x: ir.Value, heads: int, head_size: int) -> ir.Value:
    """Norm each head of `x`, `[B, S, heads * head_size]`."""
    split = op.Reshape(x, [0, 0, heads, head_size])
    normed: ir.Value = op.Reshape(norm(op, split), [0, 0, heads * head_size])
    return normed


def score_attributes(config: ArchitectureConfig) -> dict[str, float]:
    """Return `scale` and `softcap` where the model has them: a default stays unwritten."""
    values = {"scale": config.attention_scale, "softcap": config.attn_logit_softcapping}
    return {name: value for name, value in values.items() if value is not None}
