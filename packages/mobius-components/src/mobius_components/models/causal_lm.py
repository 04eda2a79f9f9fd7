"""`CausalLMModel`: token ids -> logits of the next token, with a key/value cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import ArchitectureConfig
from mobius_components.layers.attention import KeyValue
from mobius_components.layers.decoder import DecoderLayer
from mobius_components.layers.embedding import Embedding
from mobius_components.layers.linear import Linear
from mobius_components.layers.masks import decoder_mask
from mobius_components.layers.norm import make_norm
from mobius_components.layers.rotary import RotaryEmbedding


class DecoderModel(nn.Module):
    """Embedding, layers and the last norm: ids `[B, S]` -> states `[B, S, hidden]`.

    Source: `transformers` `LlamaModel`.
    """

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(config) for _ in range(config.num_hidden_layers)])
        self.norm = make_norm(config.norm_type, config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config) if config.rope_theta is not None else None
        self._config = config

    def forward(
        self,
        op: OpBuilder,
        input_ids: ir.Value,
        attention_mask: ir.Value,
        position_ids: ir.Value,
        past: Sequence[KeyValue],
    ) -> tuple[Any, list[KeyValue]]:
        """Return the states after the last norm, and each layer's grown cache."""
        hidden_states = self.embed_tokens(op, input_ids)
        windows = [self._config.window(index) for index in range(len(self.layers))]
        masks = {
            window: decoder_mask(op, attention_mask, position_ids, window)
            for window in dict.fromkeys(windows)
        }
        dtype = self.embed_tokens.weight.dtype
        rotation = self.rotary_emb and self.rotary_emb(op, position_ids, dtype)
        present = []
        for layer, window, layer_past in zip(self.layers, windows, past, strict=True):
            hidden_states, layer_present = layer(
                op, hidden_states, masks[window], rotation, layer_past
            )
            present.append(layer_present)
        return self.norm(op, hidden_states), present


class CausalLMModel(nn.Module):
    """A decoder with its output head; parameter names are those of HuggingFace checkpoints.

    Source: `transformers` `LlamaForCausalLM`.
    """

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        self.config = config
        self.model = DecoderModel(config)
        self.lm_head = (
            None if config.tie_word_embeddings else Linear(config.hidden_size, config.vocab_size)
        )

    def forward(
        self,
        op: OpBuilder,
        input_ids: ir.Value,
        attention_mask: ir.Value,
        position_ids: ir.Value,
        past: Sequence[KeyValue],
    ) -> tuple[Any, list[KeyValue]]:
        """Return logits and the grown caches.

        Args:
            op: Builder.
            input_ids: int64 `[B, S]`.
            attention_mask: int64 `[B, T]`, `T` being past and present tokens together.
            position_ids: int64 `[B, S]`.
            past: Cache of each layer.

        Returns:
            Logits, float32 `[B, S, vocab_size]` whatever the weights are (a runtime that reads
            bfloat16 as raw bytes would sample garbage), and the caches.
        """
        states, present = self.model(op, input_ids, attention_mask, position_ids, past)
        if self.lm_head is None:
            logits = self.model.embed_tokens.logits(op, states)
        else:
            logits = self.lm_head(op, states)
        if self.model.embed_tokens.weight.dtype != ir.DataType.FLOAT:
            logits = op.Cast(logits, to=ir.DataType.FLOAT)
        cap = self.config.final_logit_softcapping
        if cap is not None:
            logits = op.Mul(op.Tanh(op.Div(logits, cap)), cap)
        return logits, present
