"""`features_of`: what an architecture has beyond a plain decoder, read off its configuration.

A row names the fields that it reads, so that a test finds the fields that no row reads. Values are
compared with the field's default unless a row says otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from mobius_components import ArchitectureConfig
from mobius_components.config import GATED_DELTA, LIGHTNING_ATTENTION, SLIDING_ATTENTION

_FIELDS = {field.name: field for field in dataclasses.fields(ArchitectureConfig)}
_UNSET = (dataclasses.MISSING, None, False)


@dataclasses.dataclass(frozen=True)
class Feature:
    """A column of the table of verified models.

    Attributes:
        name: What readers call it.
        fields: The fields of `ArchitectureConfig` that decide it.
        shown: Whether an architecture has it; by default, a field differs from its default.
    """

    name: str
    fields: tuple[str, ...]
    shown: Callable[[ArchitectureConfig], bool] | None = None

    def of(self, config: ArchitectureConfig) -> bool:
        """Return whether `config` has the feature."""
        if self.shown is not None:
            return self.shown(config)
        return any(_differs(name, getattr(config, name)) for name in self.fields)


def _differs(name: str, value: Any) -> bool:
    default = _FIELDS[name].default
    return value not in _UNSET if default in _UNSET else value != default


def _slides(config: ArchitectureConfig) -> bool:
    return SLIDING_ATTENTION in (config.layer_types or ())


def _is_linear(config: ArchitectureConfig) -> bool:
    return not {GATED_DELTA, LIGHTNING_ATTENTION}.isdisjoint(config.layer_types or ())


def _rope_scaled(config: ArchitectureConfig) -> bool:
    kinds = [config.rope_scaling, *(config.rope_by_layer_type or {}).values()]
    return any(kind and kind.get("rope_type", "default") != "default" for kind in kinds)


FEATURES = (
    Feature("window", ("sliding_window", "layer_types"), _slides),
    Feature("chunked attention", ("attention_chunk_size",)),
    Feature("sinks", ("attention_sinks",)),
    Feature("latent attention", ("latent_attention",)),
    Feature("MoE", ("moe",)),
    Feature("state space", ("mamba", "mamba2")),
    Feature("linear attention", ("gated_delta", "layer_types"), _is_linear),
    Feature("RG-LRU", ("rg_lru",)),
    Feature("short convolution", ("short_conv",)),
    Feature("softcap", ("attn_logit_softcapping", "final_logit_softcapping")),
    Feature("scaled rope", ("rope_scaling",), _rope_scaled),
    Feature("rope by layer", ("rope_by_layer_type", "rope_layers")),
    Feature("partial rope", ("partial_rotary_factor",)),
    Feature("interleaved rope", ("rope_interleaved",)),
    Feature(
        "ALiBi",
        ("position_embedding", "alibi_bias_max", "alibi_scale", "alibi_bfloat16"),
        lambda config: config.position_embedding == "alibi",
    ),
    Feature(
        "learned positions",
        ("position_embedding", "position_offset"),
        lambda config: config.position_embedding == "learned",
    ),
    Feature("biases", ("attention_bias", "attention_output_bias", "mlp_bias", "lm_head_bias")),
    Feature(
        "QK norm",
        ("qk_norm", "qk_norm_type", "qk_norm_after_rotary", "qk_norm_where_rotating"),
        lambda config: config.qk_norm is not None,
    ),
    Feature("value norm", ("value_norm",)),
    Feature("keys as values", ("value_is_key",)),
    Feature("gated attention", ("attention_gate",)),
    Feature("shared caches", ("num_kv_shared_layers",)),
    Feature("shared blocks", ("shared_blocks",)),
    Feature("heads by layer", ("heads_by_layer_type",)),
    Feature("widths by layer", ("intermediate_sizes",)),
    Feature("sparse activations", ("activation_sparsity",)),
    Feature("per-layer inputs", ("per_layer_input",)),
    Feature("AltUp", ("altup",)),
    Feature("clipped QKV", ("qkv_clip",)),
    Feature("query temperature", ("query_temperature",)),
    Feature("layer norm", ("norm_type",)),
    Feature(
        "grouped heads",
        ("num_attention_heads", "num_key_value_heads"),
        lambda config: config.num_attention_heads != config.num_key_value_heads,
    ),
    Feature(
        "multipliers",
        ("embedding_multiplier", "residual_multiplier", "logits_scaling", "multipliers"),
    ),
    Feature("tied head", ("tie_word_embeddings",)),
)

PLAIN = frozenset(
    {
        "attention_scale",
        "dtype",
        "embedding_norm",
        "embedding_size",
        "final_norm",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "layer_layout",
        "max_position_embeddings",
        "mlp_gated",
        "model_type",
        "num_hidden_layers",
        "rms_norm_eps",
        "rope_theta",
        "vocab_size",
    }
)
"""Fields that every decoder has, or that are no column of the table."""


def features_of(config: ArchitectureConfig) -> list[str]:
    """Return the names of the features that `config` has, in the order of `FEATURES`."""
    return [feature.name for feature in FEATURES if feature.of(config)]
