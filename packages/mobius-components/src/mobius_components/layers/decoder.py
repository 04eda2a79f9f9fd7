"""Decoder layers: attention and feed-forward around a residual stream, by where the norms are.

Every layer maps `[B, S, hidden]` and a cache to `[B, S, hidden]` and the grown cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import ArchitectureConfig
from mobius_components.layers.attention import Attention, KeyValue
from mobius_components.layers.mlp import make_mlp
from mobius_components.layers.norm import make_norm
from mobius_components.layers.rotary import Rotation


class DecoderLayer(nn.Module):
    """Norms before attention and feed-forward. Source: `transformers` `LlamaDecoderLayer`."""

    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = make_mlp(config)
        for name in self.norms:
            norm = make_norm(config.norm_type, config.hidden_size, config.rms_norm_eps)
            setattr(self, name, norm)
        self._multiplier = config.residual_multiplier

    def forward(
        self,
        op: OpBuilder,
        hidden_states: ir.Value,
        mask: ir.Value,
        rotation: Rotation | None,
        past: KeyValue,
    ) -> tuple[Any, KeyValue]:
        """Return the residual stream after this layer, and the grown cache."""
        normed = self._apply("input_layernorm", op, hidden_states)
        attended, present = self.self_attn(op, normed, mask, rotation, past)
        hidden_states = self._add(op, hidden_states, attended)
        fed = self.mlp(op, self._apply("post_attention_layernorm", op, hidden_states))
        return self._add(op, hidden_states, fed), present

    def _apply(self, norm: str, op: OpBuilder, x: ir.Value) -> Any:
        return getattr(self, norm)(op, x)

    def _add(self, op: OpBuilder, residual: ir.Value, update: ir.Value) -> Any:
        if self._multiplier is not None:
            update = op.Mul(update, self._multiplier)
        return op.Add(residual, update)


class PostNormLayer(DecoderLayer):
    """Norms of what is added to the stream. Source: `transformers` `Olmo2DecoderLayer`."""

    norms = ("post_attention_layernorm", "post_feedforward_layernorm")

    def forward(
        self,
        op: OpBuilder,
        hidden_states: ir.Value,
        mask: ir.Value,
        rotation: Rotation | None,
        past: KeyValue,
    ) -> tuple[Any, KeyValue]:
        """Return the residual stream after this layer, and the grown cache."""
        attended, present = self.self_attn(op, hidden_states, mask, rotation, past)
        attended = self._apply("post_attention_layernorm", op, attended)
        hidden_states = self._add(op, hidden_states, attended)
        fed = self._apply("post_feedforward_layernorm", op, self.mlp(op, hidden_states))
        return self._add(op, hidden_states, fed), present


class NormAfterAddLayer(DecoderLayer):
    """Norms of the stream after each addition. Source: `transformers` `OPTDecoderLayer`."""

    def forward(
        self,
        op: OpBuilder,
        hidden_states: ir.Value,
        mask: ir.Value,
        rotation: Rotation | None,
        past: KeyValue,
    ) -> tuple[Any, KeyValue]:
        """Return the residual stream after this layer, and the grown cache."""
        attended, present = self.self_attn(op, hidden_states, mask, rotation, past)
        added = self._add(op, hidden_states, attended)
        hidden_states = self._apply("input_layernorm", op, added)
        added = self._add(op, hidden_states, self.mlp(op, hidden_states))
        return self._apply("post_attention_layernorm", op, added), present


class SandwichLayer(DecoderLayer):
    """Norms before and after each part. Source: `transformers` `Gemma2DecoderLayer`."""

    norms = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )

    def forward(
        self,
        op: OpBuilder,
        hidden_states: ir.Value,
        mask: ir.Value,
        rotation: Rotation | None,
        past: KeyValue,
    ) -> tuple[Any, KeyValue]:
        """Return the residual stream after this layer, and the grown cache."""
        normed = self._apply("input_layernorm", op, hidden_states)
        attended, present = self.self_attn(op, normed, mask, rotation, past)
        attended = self._apply("post_attention_layernorm", op, attended)
        hidden_states = self._add(op, hidden_states, attended)
        fed = self.mlp(op, self._apply("pre_feedforward_layernorm", op, hidden_states))
        fed = self._apply("post_feedforward_layernorm", op, fed)
        return self._add(op, hidden_states, fed), present


class ParallelLayer(DecoderLayer):
    """Attention and feed-forward of the same normed stream. Source: `transformers` `GPTJBlock`."""

    norms: tuple[str, ...] = ("input_layernorm",)

    def forward(
        self,
        op: OpBuilder,
        hidden_states: ir.Value,
        mask: ir.Value,
        rotation: Rotation | None,
        past: KeyValue,
    ) -> tuple[Any, KeyValue]:
        """Return the residual stream after this layer, and the grown cache."""
        normed = self._apply(self.norms[0], op, hidden_states)
        attended, present = self.self_attn(op, normed, mask, rotation, past)
        if len(self.norms) > 1:
            normed = self._apply(self.norms[1], op, hidden_states)
        fed = self.mlp(op, normed)
        return self._add(op, self._add(op, hidden_states, attended), fed), present


class ParallelTwoNormsLayer(ParallelLayer):
    """As `ParallelLayer`, a norm for each part. Source: `transformers` `GPTNeoXLayer`."""

    norms = ("input_layernorm", "post_attention_layernorm")


LAYOUTS: Mapping[str, type[DecoderLayer]] = MappingProxyType(
    {
        "pre_norm": DecoderLayer,
        "post_norm": PostNormLayer,
        "norm_after_add": NormAfterAddLayer,
        "sandwich": SandwichLayer,
        "parallel": ParallelLayer,
        "parallel_two_norms": ParallelTwoNormsLayer,
    }
)
"""The layer of each `ArchitectureConfig.layer_layout`."""
