"""`DecoderLayer`: attention and feed-forward around a residual stream, norms first."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import ArchitectureConfig
from mobius_components.layers.attention import Attention, KeyValue
from mobius_components.layers.mlp import make_mlp
from mobius_components.layers.norm import make_norm
from mobius_components.layers.rotary import Rotation


class DecoderLayer(nn.Module):
    """Pre-norm layer, `[B, S, hidden]` -> `[B, S, hidden]`.

    Source: `transformers` `LlamaDecoderLayer`.
    """

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        self.input_layernorm = make_norm(config.norm_type, config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = make_norm(
            config.norm_type, config.hidden_size, config.rms_norm_eps
        )
        self.mlp = make_mlp(config)

    def forward(
        self,
        op: OpBuilder,
        hidden_states: ir.Value,
        mask: ir.Value,
        rotation: Rotation | None,
        past: KeyValue,
    ) -> tuple[Any, KeyValue]:
        """Return the residual stream after this layer, and the grown cache."""
        normed = self.input_layernorm(op, hidden_states)
        attended, present = self.self_attn(op, normed, mask, rotation, past)
        hidden_states = op.Add(hidden_states, attended)
        fed = self.mlp(op, self.post_attention_layernorm(op, hidden_states))
        return op.Add(hidden_states, fed), present
