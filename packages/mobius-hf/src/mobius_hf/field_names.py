"""A `ConfigError` in our names -> a `CheckpointConfigError` in the names of the user's file.

`ArchitectureConfig` has one name for what families spell in several ways; a message about a file
has to use the file's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from mobius_components.config_error import ConfigError
from mobius_hf.config import ConfigFields
from mobius_hf.errors import CheckpointConfigError

_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_WIDTH = ("hidden_size", "n_embd", "d_model")
_STATE_HEADS = ("mamba_n_heads", "n_mamba_heads", "mamba_num_heads", "num_heads")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_ACTIVATIONS = (
    "hidden_act",
    "hidden_activation",
    "activation_function",
    "activation",
    "mlp_hidden_act",
    "mamba_hidden_act",
)

FIELD_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "AltUpConfig.active": ("altup_active_idx", "altup_num_inputs"),
        "AltUpConfig.laurel_rank": ("laurel_rank",),
        "AltUpConfig.num_inputs": ("altup_num_inputs",),
        "ArchitectureConfig.attention_chunk_size": ("attention_chunk_size",),
        "ArchitectureConfig.attention_scale": (
            "attention_multiplier",
            "query_pre_attn_scalar",
            "softmax_scale",
            "key_multiplier",
            "mscale_all_dim",
            "factor",
        ),
        "ArchitectureConfig.embedding_multiplier": ("scale_emb",),
        "ArchitectureConfig.embedding_size": ("word_embed_proj_dim",),
        "ArchitectureConfig.final_logit_softcapping": ("logits_soft_cap",),
        "ArchitectureConfig.head_dim": ("attention_head_dim", *_WIDTH, *_HEADS),
        "ArchitectureConfig.hidden_act": _ACTIVATIONS,
        "ArchitectureConfig.hidden_size": _WIDTH,
        "ArchitectureConfig.intermediate_size": (
            "n_inner",
            "ffn_hidden_size",
            "ffn_dim",
            "block_ffn_dim_multiplier",
            "block_multiple_of",
        ),
        "ArchitectureConfig.layer_types": (
            "attention_types",
            "layers_block_type",
            "block_types",
            *_LAYERS,
        ),
        "ArchitectureConfig.logits_scaling": (
            "logit_scale",
            "lm_head_multiplier",
            "dim_model_base",
        ),
        "ArchitectureConfig.max_position_embeddings": ("n_positions", "max_seq_len"),
        "ArchitectureConfig.num_attention_heads": _HEADS,
        "ArchitectureConfig.num_hidden_layers": (
            *_LAYERS,
            "layers_block_type",
            "hybrid_override_pattern",
        ),
        "ArchitectureConfig.num_key_value_heads": ("num_kv_heads", "kv_n_heads"),
        "ArchitectureConfig.num_kv_shared_layers": ("layer_types", *_LAYERS),
        "ArchitectureConfig.partial_rotary_factor": (
            "rotary_dim",
            "rotary_pct",
            "head_dim",
            "attention_head_dim",
            *_WIDTH,
            *_HEADS,
        ),
        "ArchitectureConfig.qkv_clip": ("clip_qkv",),
        "ArchitectureConfig.residual_multiplier": ("scale_depth",),
        "ArchitectureConfig.rms_norm_eps": (
            "layer_norm_epsilon",
            "layer_norm_eps",
            "norm_epsilon",
            "norm_eps",
        ),
        "ArchitectureConfig.rope_by_layer_type": ("rope_parameters", "rope_local_base_freq"),
        "ArchitectureConfig.rope_theta": ("alpha",),
        "ArchitectureConfig.sliding_window": (
            "window_size",
            "attention_window_size",
            "use_sliding_window",
        ),
        "GatedDeltaConfig.activation": _ACTIVATIONS,
        "GatedDeltaConfig.conv_taps": ("linear_conv_kernel_dim",),
        "GatedDeltaConfig.key_heads": ("linear_num_key_heads",),
        "GatedDeltaConfig.key_size": ("linear_key_head_dim",),
        "GatedDeltaConfig.value_heads": ("linear_num_value_heads",),
        "GatedDeltaConfig.value_size": ("linear_value_head_dim",),
        "LatentAttentionConfig.norm_eps": ("rms_norm_eps",),
        "Mamba2Config.activation": _ACTIVATIONS,
        "Mamba2Config.conv_taps": ("conv_kernel", "mamba_d_conv"),
        "Mamba2Config.gated_norm_eps": ("layer_norm_epsilon", "rms_norm_eps"),
        "Mamba2Config.groups": ("n_groups", "mamba_n_groups", "mamba_ngroups"),
        "Mamba2Config.head_size": ("head_dim", "mamba_head_dim", "mamba_d_head", "mamba_expand"),
        "Mamba2Config.heads": _STATE_HEADS,
        "Mamba2Config.state_size": ("state_size", "ssm_state_size", "mamba_d_state"),
        "Mamba2Config.time_step_min": ("time_step_limit",),
        "MambaConfig.activation": _ACTIVATIONS,
        "MambaConfig.channels": ("expand", "mamba_expand", *_WIDTH),
        "MambaConfig.conv_taps": ("conv_kernel", "mamba_d_conv"),
        "MambaConfig.parameter_norm_eps": ("mixer_rms_eps", "rms_norm_eps"),
        "MambaConfig.state_size": ("state_size", "mamba_d_state"),
        "MambaConfig.time_step_rank": ("time_step_rank", "mamba_dt_rank"),
        "MixtureConfig.expert_act": _ACTIVATIONS,
        "MixtureConfig.moe_intermediate_size": ("intermediate_size",),
        "MixtureConfig.num_experts": _EXPERTS,
        "MixtureConfig.num_experts_per_tok": ("moe_k", "moe_topk", "top_k_experts"),
        "MixtureConfig.shared_expert_intermediate_size": (
            "n_shared_experts",
            "num_shared_experts",
            "moe_num_shared_experts",
            "shared_intermediate_size",
            "moe_shared_expert_intermediate_size",
            "moe_intermediate_size",
        ),
        "MixtureConfig.sparse_layers": (
            "mlp_layer_types",
            "mlp_only_layers",
            "moe_layers",
            *_LAYERS,
        ),
        "MultiplierConfig.attention_input": ("attention_in_multiplier",),
        "MultiplierConfig.attention_output": ("attention_out_multiplier",),
        "MultiplierConfig.mamba2_output": ("ssm_out_multiplier",),
        "MultiplierConfig.mlp_gate": ("mlp_multipliers",),
        "MultiplierConfig.mlp_output": ("mlp_multipliers",),
        "MultiplierConfig.mlp_stream": ("mlp_alpha_factor", "mlp_beta_factor"),
        "MultiplierConfig.stream": (
            "full_attn_alpha_factor",
            "full_attn_beta_factor",
            "linear_attn_alpha_factor",
            "linear_attn_beta_factor",
        ),
        "PerLayerInputConfig.hidden_size": ("hidden_size_per_layer_input",),
        "PerLayerInputConfig.vocab_size": ("vocab_size_per_layer_input",),
        "QueryTemperatureConfig.beta": ("attn_scale", "llama_4_scaling_beta"),
        "QueryTemperatureConfig.length": ("floor_scale", "original_max_position_embeddings"),
        "RgLruConfig.activation": _ACTIVATIONS,
        "RgLruConfig.blocks": _HEADS,
        "RgLruConfig.conv_taps": ("conv1d_width",),
        "RgLruConfig.width": ("lru_width",),
        "RouterConfig.norm_topk_min": ("moe_norm_min",),
        "RouterConfig.routed_scaling_factor": ("routed_scaling_factor", "route_scale"),
        "SharedBlockConfig.adapter_rank": ("adapter_rank",),
        "SharedBlockConfig.blocks": ("num_mem_blocks",),
        "ShortConvConfig.taps": ("conv_L_cache",),
    }
)
"""Our field -> what files call it, or the fields that it is made of, where it has another name."""

_ANOTHER_FIELD = re.compile(r"\b(\w+)(?=, which is )")


def in_words_of_file(error: ConfigError, fields: ConfigFields) -> CheckpointConfigError:
    """Return `error` for the file that `fields` are of: keys as they stand there, and their values.

    Args:
        error: What `ArchitectureConfig`, or a part of it, was refused for.
        fields: The fields that it was made from.
    """
    found = _found(error.owner, error.field, fields)
    same = [(name, value) for name, value in found if value == error.value]
    needed = _ANOTHER_FIELD.sub(lambda match: _spelled(error.owner, match[1], fields), error.needed)
    if same:
        return fields.unfit(*same[0], needed)
    if not found:
        return fields.unfit(error.field, error.value, needed)
    return fields.unfit_together(dict(found), error.field, error.value, needed)


def _found(owner: str, field: str, fields: ConfigFields) -> list[tuple[str, object]]:
    """Return the keys that a field of ours was made of, and their values.

    Those that stand in the file, or where none does, those that have a default.
    """
    names = FIELD_NAMES.get(f"{owner}.{field}", ())
    if owner == "ArchitectureConfig" or not names:
        names = (field, *names)
    places = [place for name in dict.fromkeys(names) if (place := fields.find(name)) is not None]
    stated = [(place.name, place.value) for place in places if place.stated]
    return stated or [(place.name, place.value) for place in places]


def _spelled(owner: str, field: str, fields: ConfigFields) -> str:
    found = _found(owner, field, fields) or _found("ArchitectureConfig", field, fields)
    return found[0][0] if found else field
