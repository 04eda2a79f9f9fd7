"""`CausalLMModel`: token ids -> logits of the next token, with a key/value cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import ArchitectureConfig
from mobius_components.layers.altup import AltUpGather, AltUpSpread
from mobius_components.layers.context import LayerContext
from mobius_components.layers.embedding import Embedding
from mobius_components.layers.last_token import last_token
from mobius_components.layers.layouts import LAYOUTS
from mobius_components.layers.linear import Bias, Linear
from mobius_components.layers.masks import additive_mask, alibi_bias, decoder_mask
from mobius_components.layers.mixers import mixer_of
from mobius_components.layers.norm import make_norm
from mobius_components.layers.per_layer_inputs import PerLayerInputs
from mobius_components.layers.rotary import RotaryEmbedding, Rotation, query_temperature
from mobius_components.layers.shared_block import share_blocks
from mobius_components.layers.state import KeyValue, LayerState
from mobius_components.layers.stream import Stream
from mobius_components.layers.token_order import TokenOrder
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
        layers = [layer(config, n) for n in range(config.num_hidden_layers)]
        if config.shared_blocks is not None:
            share_blocks((each.token_mixer for each in layers), config.shared_blocks.blocks)
        self.layers = nn.ModuleList([*layers])
        self.norm = self._make_norm(config) if config.final_norm else None
        self.per_layer_inputs = (
            None
            if config.per_layer_input is None
            else PerLayerInputs(config, config.per_layer_input)
        )
        self.altup_spread = None if config.altup is None else AltUpSpread(config, config.altup)
        self.altup_gather = None if config.altup is None else AltUpGather(config, config.altup)
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
        mixers = [mixer_of(self._config, n) for n in range(self._config.num_hidden_layers)]
        recurs = any(mixer.recurs for mixer in mixers)
        order = TokenOrder(op, attention_mask, position_ids) if recurs else None
        shared = LayerContext(
            attention_mask, position_ids, None, None, order=order, embedded=hidden_states
        )
        stream = Stream(self._spread(op, hidden_states), order)
        temperatures = self._temperatures(op, position_ids)
        inputs = self._layer_inputs(op, input_ids, hidden_states)
        present: list[LayerState] = []
        for index, (layer, mixer, layer_past) in enumerate(
            zip(self.layers, mixers, past, strict=True)
        ):
            source = self._config.kv_source(index)
            context = dataclasses.replace(
                shared,
                mask=masks[index],
                rotation=rotations[index],
                temperature=temperatures[index],
                shared=None if source is None else KeyValue(*present[source]),
                layer_input=inputs[index],
            )
            hidden_states, layer_present = layer(op, stream.given(op, mixer), context, layer_past)
            stream.value = hidden_states
            present.append(layer_present)
        stream.value = self._gathered(op, stream.value)
        if self.norm is not None:
            stream.value = self.norm(op, stream.value)
        hidden_states = stream.in_given_order(op)
        if self.project_out is not None:
            hidden_states = self.project_out(op, hidden_states)
        return hidden_states, present

    def _spread(self, op: OpBuilder, embedded: ir.Value) -> Any:
        """Return what the first layer is given, where it is not the embedded tokens themselves."""
        return embedded if self.altup_spread is None else self.altup_spread(op, embedded)

    def _gathered(self, op: OpBuilder, stream: ir.Value) -> Any:
        """Return `[B, S, hidden]` of what the last layer gave."""
        return stream if self.altup_gather is None else self.altup_gather(op, stream)

    def _layer_inputs(
        self, op: OpBuilder, input_ids: ir.Value, embedded: ir.Value
    ) -> Sequence[ir.Value | None]:
        """Return what each layer is given beside the stream, if anything."""
        if self.per_layer_inputs is None:
            return [None] * self._config.num_hidden_layers
        inputs: Sequence[ir.Value] = self.per_layer_inputs(op, input_ids, embedded)
        return inputs

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
        """Return each layer's mask, if it attends; layers with the same limit share one."""
        config = self._config
        attending = [n for n in range(config.num_hidden_layers) if mixer_of(config, n).attends]
        limits = {n: (config.window(n), config.chunk(n)) for n in attending}
        masks = {
            limit: decoder_mask(op, attention_mask, position_ids, *limit)
            for limit in dict.fromkeys(limits.values())
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
                limit: additive_mask(op, mask, bias, self._dtype) for limit, mask in masks.items()
            }
        return [masks[limits[n]] if n in limits else None for n in range(config.num_hidden_layers)]

    def _temperatures(self, op: OpBuilder, position_ids: ir.Value) -> list[ir.Value | None]:
        """Return the factor of each layer's queries; all layers that have one share it."""
        config = self._config
        layers = range(config.num_hidden_layers)
        if config.query_temperature is None:
            return [None for _ in layers]
        factor = query_temperature(op, position_ids, config.query_temperature, self._dtype)
        only = config.query_temperature.without_rotation
        return [None if only and config.rope(layer) is not None else factor for layer in layers]

    def _rotations(self, op: OpBuilder, position_ids: ir.Value) -> list[Rotation | None]:
        """Return each layer's rotation; layers with the same parameters share one."""
        config = self._config
        dtype = self._dtype
        made: list[tuple[RotaryParameters, Rotation]] = []
        rotations: list[Rotation | None] = []
        for index in range(config.num_hidden_layers):
            parameters = config.rope(index)
            known = [rotation for other, rotation in made if other == parameters]
            if parameters is not None and not known:
                name = f"rotary_emb.{len(made)}" if made else "rotary_emb"
                module = RotaryEmbedding(parameters, name, interleaved=config.rope_interleaved)
                known = [module(op, position_ids, dtype)]
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
        tied, bias, size = config.tie_word_embeddings, config.lm_head_bias, config.vocab_size
        self.lm_head: Linear | Bias | None = None
        if not tied:
            self.lm_head = Linear(config.embedding_width, size, bias=bias)
        elif bias:
            self.lm_head = Bias(size)

    def forward(
        self,
        op: OpBuilder,
        input_ids: ir.Value,
        attention_mask: ir.Value,
        position_ids: ir.Value,
        past: Sequence[LayerState],
        last_token_logits: bool = False,
    ) -> tuple[Any, list[LayerState]]:
        """Return logits and the states after these tokens.

        Args:
            op: Builder.
            input_ids: int64 `[B, S]`.
            attention_mask: int64 `[B, T]`, `T` being past and present tokens together.
            position_ids: int64 `[B, S]`.
            past: State of each layer.
            last_token_logits: Make the logits of each row's last token only.

        Returns:
            Logits, float32 `[B, S, vocab_size]` or `[B, 1, vocab_size]`, whatever the weights are
            (a runtime that reads bfloat16 as raw bytes would sample garbage), and the states.
        """
        states, present = self.model(op, input_ids, attention_mask, position_ids, past)
        if last_token_logits:
            states = last_token(op, states, input_ids, attention_mask)
        if self.config.tie_word_embeddings:
            states = self.model.embed_tokens.logits(op, states)
        logits = states if self.lm_head is None else self.lm_head(op, states)
        if self.model.embed_tokens.weight.dtype != ir.DataType.FLOAT:
            logits = op.Cast(logits, to=ir.DataType.FLOAT)
        if self.config.logits_scaling is not None:
            logits = op.Div(logits, self.config.logits_scaling)
        cap = self.config.final_logit_softcapping
        if cap is not None:
            logits = op.Mul(op.Tanh(op.Div(logits, cap)), cap)
        return logits, present
