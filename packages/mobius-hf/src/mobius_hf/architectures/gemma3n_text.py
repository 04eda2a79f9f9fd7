"""Gemma 3n, text part. Source: `transformers` `Gemma3nForCausalLM`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from mobius_components import ArchitectureConfig
from mobius_components.per_layer_config import AltUpConfig, PerLayerInputConfig
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.rope import read_ropes, sliding_beside_full
from mobius_hf.windows import Windows, by_layer_types

_LAYER_INPUT = r"(per_layer_input_gate|per_layer_projection|post_per_layer_input_norm)\."
PER_LAYER_RENAMES = (
    (rf"^(?:model\.)?(layers\.\d+)\.{_LAYER_INPUT}", r"model.\1.layer_input.\2."),
    (
        r"^(?:model\.)?(embed_tokens_per_layer|per_layer_model_projection|"
        r"per_layer_projection_norm)\.",
        r"model.per_layer_inputs.\1.",
    ),
)
"""Of what is given to each layer beside the stream."""
_KEYS = re.compile(r"model\.layers\.(\d+)\.self_attn\.(?:k_proj|v_proj|k_norm|v_norm)\..*")
_SPARSE_LAYERS, _SPARSITY = 10, 0.95


class Gemma3nText(DecoderArchitecture):
    """Several streams, an input for each layer, sparse gates, shared keys and values."""

    model_type = "gemma3n_text"
    activation_field = "hidden_activation"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 32768,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "sliding_window": 512,
        "attention_bias": False,
        "final_logit_softcapping": 30.0,
        "vocab_size_per_layer_input": 262144,
        "hidden_size_per_layer_input": 256,
        "altup_active_idx": 0,
        "altup_correct_scale": True,
        "altup_num_inputs": 4,
        "num_kv_shared_layers": 15,
        "laurel_rank": 64,
        "tie_word_embeddings": True,
    }
    # The clip and the rate are for training; the layer types say what the pattern would, and
    # scores are not scaled.
    irrelevant = frozenset(
        {
            "altup_coef_clip",
            "altup_lr_multiplier",
            "query_pre_attn_scalar",
            "rope_local_base_freq",
            "sliding_window_pattern",
        }
    )
    renames = (
        *PER_LAYER_RENAMES,
        (
            r"^(?:model\.)?(layers\.\d+)\.altup\.correct_output_scale$",
            r"model.\1.output_scale.weight",
        ),
        (r"^(?:model\.)?altup_projections\.", "model.altup_spread.projections."),
        (r"^(?:model\.)?altup_unembed_projections\.", "model.altup_gather.projections."),
        *DecoderArchitecture.renames,
    )

    def windows(self, fields: ConfigFields) -> Windows:
        """Return the window of the sliding layers."""
        return by_layer_types(fields)

    def rotary(self, fields: ConfigFields, windows: Windows) -> dict[str, Any]:
        """Return the rotary embedding of full layers, and that of sliding ones."""
        return sliding_beside_full(read_ropes(fields, set(windows.layer_types)))

    def feed_forward_size(self, fields: ConfigFields) -> int:
        """Return the largest width of a feed-forward layer."""
        sizes = _each(fields, "intermediate_size", fields.integer("num_hidden_layers"))
        return max(map(int, sizes))

    def is_unused(self, parameter: str, config: ArchitectureConfig) -> bool:
        """Return whether `parameter` is of keys or values in a layer that reads those of another.

        Or of the scale of a stream that is not scaled.
        Source: `transformers` `Gemma3nTextModel._keys_to_ignore_on_load_unexpected`.
        """
        if parameter.endswith(".output_scale.weight"):
            return config.altup is not None and not config.altup.correct_scale
        match = _KEYS.fullmatch(parameter)
        return match is not None and config.kv_source(int(match[1])) is not None

    def common(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments that Gemma 4 has too."""
        bias = fields.flag("attention_bias")
        return super().arguments(fields) | {
            "attention_bias": bias,
            "attention_output_bias": bias,
            "qk_norm": "head",
            "value_norm": True,
            "attention_scale": 1.0,
            "embedding_multiplier": fields.integer("hidden_size") ** 0.5,
            "final_logit_softcapping": fields.value("final_logit_softcapping"),
            "num_kv_shared_layers": fields.integer("num_kv_shared_layers"),
        }

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the common arguments, and what only Gemma 3n has."""
        layers = fields.integer("num_hidden_layers")
        return self.common(fields) | {
            "layer_layout": "gemma3n",
            "intermediate_sizes": _each(fields, "intermediate_size", layers),
            "activation_sparsity": _sparsity(fields, layers),
            "per_layer_input": PerLayerInputConfig(
                vocab_size=fields.integer("vocab_size_per_layer_input"),
                hidden_size=fields.integer("hidden_size_per_layer_input"),
            ),
            "altup": AltUpConfig(
                num_inputs=fields.integer("altup_num_inputs"),
                active=fields.integer("altup_active_idx"),
                correct_scale=fields.flag("altup_correct_scale"),
                laurel_rank=fields.integer("laurel_rank"),
            ),
        }


def _sparsity(fields: ConfigFields, layers: int) -> tuple[float, ...]:
    """Return the part of the gates that each layer cuts.

    Source of what is meant without a pattern: `transformers` `Gemma3nTextConfig.__post_init__`.
    """
    if fields.value("activation_sparsity_pattern") is not None:
        return _each(fields, "activation_sparsity_pattern", layers)
    sparse = _SPARSE_LAYERS if layers > _SPARSE_LAYERS else 0
    return (_SPARSITY,) * sparse + (0.0,) * (layers - sparse)


def _each(fields: ConfigFields, name: str, layers: int) -> tuple[Any, ...]:
    """Return the numbers of each layer of a field with one for all, or a list."""
    value = fields.value(name)
    if isinstance(value, Sequence) and len(value) == layers:
        return tuple(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (value,) * layers
    raise fields.unfit(name, value, f"a number, or a list of {layers}")


ARCHITECTURE = Gemma3nText()
