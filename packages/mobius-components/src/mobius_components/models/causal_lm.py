"""`CausalLMModel`: token ids -> logits of the next token, with a key/value cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import ArchitectureConfig
from mobius_components.layers.context import LayerContext
from mobius_components.layers.decoder import LAYOUTS
from mobius_components.layers.embedding import Embedding
from mobius_components.layers.linear import Linear
from mobius_components.layers.masks import additive_mask, alibi_bias, decoder_mask
from mobius_components.layers.mixers import mixer_of
from mobius_components.layers.norm import make_norm
from mobius_components.layers.rotary import RotaryEmbedding, Rotation, query_temperature
from mobius_components.layers.state import LayerState
from mobius_components.rotary_tables import RotaryParameters


class DecoderModel(nn.Module):
    """Embedding, layers and the last norm: ids `[B, S]` -> states `[B, S, hidden]`.

    Source: `transformers` `LlamaModel`.
    """

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        width, hidden = config.embedding_width, config.hidden_size
        self.embed_tokens = Embedding(config.vocab_size, width)
        self.project_in = None if width == hidden else Linear(width, hidden)
        self.project_out = None if width == hidden else Linear(hidden, width)
        learned = config.position_embedding == "learned"
        rows = config.max_position_embeddings + config.position_offset
        self.embed_positions = Embedding(rows, config.hidden_size) if learned else None
        self.embed_norm = self._make_norm(config) if config.embedding_norm else None
        layer = LAYOUTS[config.layer_layout]
        self.layers = nn.ModuleList([layer(config, n) for n in range(config.num_hidden_layers)])
        self.norm = self._make_norm(config) if config.final_norm else None
        self._config = config

    @staticmethod
    def _make_norm(config: ArchitectureConfig) -> nn.Module:
        return make_norm(config.norm_type, config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        op: OpBuilder,
        input_ids: ir.Value,
        attention_mask: ir.Value,
        position_ids: ir.Value,
        past: Sequence[LayerState],
    ) -> tuple[Any, list[LayerState]]:
        """Return the hidden states after the last norm, and each layer's state."""
        hidden_states = self._embed(op, input_ids, position_ids)
        masks = self._masks(op, attention_mask, position_ids)
        rotations = self._rotations(op, position_ids)
        present = []
        for layer, mask, rotation, layer_past in zip(
            self.layers, masks, rotations, past, strict=True
        ):
            context = LayerContext(attention_mask, position_ids, mask, rotation)
            hidden_states, layer_present = layer(op, hidden_states, context, layer_past)
            present.append(layer_present)
        if self.norm is not None:
            hidden_states = self.norm(op, hidden_states)
        if self.project_out is not None:
            hidden_states = self.project_out(op, hidden_states)
        return hidden_states, present

    @property
    def _dtype(self) -> ir.DataType:
        """Element type of the activations."""
        dtype = self.embed_tokens.weight.dtype
        assert dtype is not None  # a parameter always has one
        return dtype

    def _embed(self, op: OpBuilder, input_ids: ir.Value, position_ids: ir.Value) -> ir.Value:
        config = self._config
        hidden_states: ir.Value = self.embed_tokens(op, input_ids)
        if self.project_in is not None:
            hidden_states = self.project_in(op, hidden_states)
        if config.embedding_multiplier is not None:
            hidden_states = op.Mul(hidden_states, config.embedding_multiplier)
        if self.embed_positions is not None:
            if config.position_offset:
                position_ids = op.Add(position_ids, config.position_offset)
            hidden_states = op.Add(hidden_states, self.embed_positions(op, position_ids))
        if self.embed_norm is not None:
            hidden_states = self.embed_norm(op, hidden_states)
        return hidden_states

    def _masks(
        self, op: OpBuilder, attention_mask: ir.Value, position_ids: ir.Value
    ) -> list[ir.Value | None]:
        """Return each layer's mask, if it attends; layers with the same window share one."""
        config = self._config
        attending = [n for n in range(config.num_hidden_layers) if mixer_of(config, n).attends]
        windows = {n: config.window(n) for n in attending}
        masks = {
            window: decoder_mask(op, attention_mask, position_ids, window)
            for window in dict.fromkeys(windows.values())
        }
        if config.position_embedding == "alibi":
            bias = alibi_bias(
                op,
                attention_mask,
                config.num_attention_heads,
                self._dtype,
                bias_max=config.alibi_bias_max,
                scale=config.alibi_scale,
                bfloat16=config.alibi_bfloat16,
            )
            masks = {
                window: additive_mask(op, mask, bias, self._dtype) for window, mask in masks.items()
            }
        return [
            masks[windows[n]] if n in windows else None for n in range(config.num_hidden_layers)
        ]

    def _rotations(self, op: OpBuilder, position_ids: ir.Value) -> list[Rotation | None]:
        """Return each layer's rotation; layers with the same parameters share one."""
        config = self._config
        dtype = self._dtype
        made: list[tuple[RotaryParameters, Rotation]] = []
        rotations: list[Rotation | None] = []
        temperature = None
        if config.query_temperature is not None:
            temperature = query_temperature(op, position_ids, *config.query_temperature, dtype)
        for index in range(config.num_hidden_layers):
            parameters = config.rope(index)
            known = [rotation for other, rotation in made if other == parameters]
            if parameters is not None and not known:
                name = f"rotary_emb.{len(made)}" if made else "rotary_emb"
                module = RotaryEmbedding(parameters, name, interleaved=config.rope_interleaved)
                rotation = module(op, position_ids, dtype)
                known = [dataclasses.replace(rotation, temperature=temperature)]
                made.append((parameters, known[0]))
            rotations.append(known[0] if known else None)
        return rotations


class CausalLMModel(nn.Module):
    """A decoder with its output head; parameter names are those of HuggingFace checkpoints.

    Source: `transformers` `LlamaForCausalLM`.
    """

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        self.config = config
        self.model = DecoderModel(config)
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else Linear(config.embedding_width, config.vocab_size, bias=config.lm_head_bias)
        )

    def forward(
        self,
        op: OpBuilder,
        input_ids: ir.Value,
        attention_mask: ir.Value,
        position_ids: ir.Value,
        past: Sequence[LayerState],
    ) -> tuple[Any, list[LayerState]]:
        """Return logits and the states after these tokens.

        Args:
            op: Builder.
            input_ids: int64 `[B, S]`.
            attention_mask: int64 `[B, T]`, `T` being past and present tokens together.
            position_ids: int64 `[B, S]`.
            past: State of each layer.

        Returns:
            Logits, float32 `[B, S, vocab_size]` whatever the weights are (a runtime that reads
            bfloat16 as raw bytes would sample garbage), and the states.
        """
        states, present = self.model(op, input_ids, attention_mask, position_ids, past)
        if self.lm_head is None:
            logits = self.model.embed_tokens.logits(op, states)
        else:
            logits = self.lm_head(op, states)
        if self.model.embed_tokens.weight.dtype != ir.DataType.FLOAT:
            logits = op.Cast(logits, to=ir.DataType.FLOAT)
        if self.config.logits_scaling is not None:
            logits = op.Div(logits, self.config.logits_scaling)
        cap = self.config.final_logit_softcapping
        if cap is not None:
            logits = op.Mul(op.Tanh(op.Div(logits, cap)), cap)
        return logits, present
