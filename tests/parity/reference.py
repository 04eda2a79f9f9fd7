"""Tiny random transformers models, and the logits that a row has when it runs alone."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

TINY: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}

ABSENT = object()  # a field that the family does not have

_LONG_FACTORS = [1.0 + 0.3 * i for i in range(6)]

# What the families have beyond llama's plain form, each past its own defaults.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "qwen2": {
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
    },
    "qwen3": {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "mistral": {"sliding_window": 4},
    "cohere": {"logit_scale": 0.25, "tie_word_embeddings": True},
    "gemma": {"tie_word_embeddings": True, "head_dim": 32},
    "gemma2": {
        "sliding_window": 4,
        "query_pre_attn_scalar": 7,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gemma3_text": {
        "sliding_window": 4,
        "query_pre_attn_scalar": 7,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5},
        },
    },
    "glm": {"head_dim": 32, "pad_token_id": 0, "eos_token_id": 1},
    "gpt2": {
        **{name: ABSENT for name in TINY if name != "vocab_size"},
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 64,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": True,
    },
    "gpt_neox": {
        "num_key_value_heads": ABSENT,
        "head_dim": ABSENT,
        "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0},
    },
    "granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "logits_scaling": 2.0,
        "attention_multiplier": 0.3,
    },
    "olmo": {"pad_token_id": 0, "eos_token_id": 1},
    "olmo2": {"pad_token_id": 0, "eos_token_id": 1},
    "phi": {
        "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0},
        "head_dim": ABSENT,
    },
    "phi3": {
        "sliding_window": 6,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "head_dim": ABSENT,
        "original_max_position_embeddings": 12,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.75,
            "short_factor": [1.0] * 6,
            "long_factor": _LONG_FACTORS,
            "original_max_position_embeddings": 12,
        },
    },
    "starcoder2": {
        "sliding_window": 4,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": True,
    },
}


def _gpt2_like(**own: Any) -> dict[str, Any]:
    """Return fields under the names of GPT-2's config."""
    return {
        **{name: ABSENT for name in TINY if name not in ("vocab_size", "tie_word_embeddings")},
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 64,
        "bos_token_id": 0,
        "eos_token_id": 1,
        **own,
    }


_SLIDING = {
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_SPECIAL_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_NO_GROUPS = {"num_key_value_heads": ABSENT, "head_dim": ABSENT}
CONFIGS |= {
    "apertus": {**_SPECIAL_TOKENS, "attention_bias": True, "head_dim": ABSENT},
    "arcee": {"attention_bias": True, "mlp_bias": True},
    "bloom": {
        **{name: ABSENT for name in TINY if name not in ("vocab_size", "hidden_size")},
        "n_layer": 3,
        "n_head": 6,
        "hidden_size": 96,
        "tie_word_embeddings": True,
    },
    "biogpt": {**_SPECIAL_TOKENS, **_NO_GROUPS, "tie_word_embeddings": True},
    "codegen": _gpt2_like(rotary_dim=8, n_head=8),
    "cohere2": {**_SPECIAL_TOKENS, **_SLIDING, "logit_scale": 1.0, "head_dim": ABSENT},
    "cwm": {**_SPECIAL_TOKENS, **_SLIDING, "mlp_bias": True},
    "ernie4_5": {"use_bias": True, "head_dim": 32},
    "exaone": {**_SPECIAL_TOKENS},
    "exaone4": {**_SLIDING, "head_dim": ABSENT},
    "falcon": {
        **_NO_GROUPS,
        "intermediate_size": ABSENT,
        "tie_word_embeddings": True,
    },
    "glm4": {**_SPECIAL_TOKENS, "head_dim": 32},
    "gpt_bigcode": _gpt2_like(tie_word_embeddings=True),
    "gpt_neo": {
        **_NO_GROUPS,
        "num_hidden_layers": ABSENT,
        "num_attention_heads": ABSENT,
        "num_layers": 3,
        "num_heads": 8,
        "attention_types": [[["local", "global", "local"], 1]],
        "window_size": 4,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": True,
    },
    "gptj": _gpt2_like(rotary_dim=8),
    "helium": {**_SPECIAL_TOKENS, "attention_bias": True, "mlp_bias": True, "head_dim": 16},
    "hunyuan_v1_dense": {
        "attention_bias": True,
        "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0},
    },
    "granite_swa": {
        **_SLIDING,
        "attention_bias": True,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "logits_scaling": 2.0,
        "attention_multiplier": 0.3,
        "layer_rope_theta": [500.0, 10000.0, 0],
    },
    "hyperclovax": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "logits_scaling": 2.0,
        "attention_multiplier": 0.3,
    },
    "internlm3": {**_SPECIAL_TOKENS, "attention_bias": True, "mlp_bias": True},
    "iquestcoder": {"head_dim": 32},
    "jais2": {**_SPECIAL_TOKENS},
    "ministral": {**_SLIDING, "head_dim": 32},
    "ministral3": {
        **_SPECIAL_TOKENS,
        "head_dim": 32,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 4,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.5,
        },
    },
    "mpt": {
        **{name: ABSENT for name in TINY if name != "vocab_size"},
        "d_model": 96,
        "n_layers": 3,
        "n_heads": 6,
        "attn_config": {"clip_qkv": 1.5, "softmax_scale": 0.4},
        "tie_word_embeddings": True,
    },
    "nemotron": {"attention_bias": True, "mlp_bias": True, "head_dim": 32},
    "olmo3": {
        **_SPECIAL_TOKENS,
        **_SLIDING,
        "head_dim": ABSENT,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
        },
    },
    "opt": {
        **_NO_GROUPS,
        "intermediate_size": ABSENT,
        "ffn_dim": 96,
        "tie_word_embeddings": True,
    },
    "persimmon": {**_NO_GROUPS},
    "seed_oss": {"attention_out_bias": True, "mlp_bias": True},
    "smollm3": {
        **_SPECIAL_TOKENS,
        "no_rope_layers": [1, 0, 1],
        "use_sliding_window": True,
        "sliding_window": 4,
        "head_dim": ABSENT,
    },
    "vaultgemma": {
        **_SLIDING,
        "query_pre_attn_scalar": 7,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "tie_word_embeddings": True,
    },
    "stablelm": {"use_qkv_bias": True, "head_dim": ABSENT},
}

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_ROUTED_EXPERTS = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
}
CONFIGS |= {
    "afmoe": {
        **_SPECIAL_TOKENS,
        **_SLIDING,
        **_EXPERTS,
        "num_dense_layers": 1,
        "num_shared_experts": 2,
        "route_scale": 1.5,
        "mup_enabled": True,
    },
    "cohere2_moe": {
        **_SPECIAL_TOKENS,
        **_SLIDING,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_shared_experts": 2,
        "mlp_layer_types": ["sparse", "dense", "sparse"],
        "prefix_dense_intermediate_size": 80,
        "logit_scale": 1.0,
        "attention_bias": True,
    },
    "dots1": {
        **_SPECIAL_TOKENS,
        **_ROUTED_EXPERTS,
        "head_dim": 32,
        "attention_bias": True,
        "sliding_window": 4,
        "max_window_layers": 2,
    },
    "ernie4_5_moe": {
        "use_bias": True,
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_intermediate_size": 32,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
    },
    "exaone_moe": {
        **_SPECIAL_TOKENS,
        **_SLIDING,
        **_EXPERTS,
        "head_dim": 32,
        "num_shared_experts": 2,
        "mlp_layer_types": ["sparse", "dense", "sparse"],
    },
    "flex_olmo": {**_SPECIAL_TOKENS, "num_experts": 4, "num_experts_per_tok": 3},
    "glm4_moe": {**_SPECIAL_TOKENS, **_ROUTED_EXPERTS, "head_dim": 32, "use_qk_norm": True},
    "granitemoe": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "logits_scaling": 2.0,
        "attention_multiplier": 0.3,
    },
    "granitemoeshared": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 48,
        "attention_multiplier": 0.3,
    },
    "granitemoe_swa": {
        **_SLIDING,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 48,
        "attention_multiplier": 0.3,
        "layer_rope_theta": [500.0, 10000.0, 0],
    },
    "hunyuan_v1_moe": {
        "attention_bias": True,
        "num_experts": 4,
        "moe_topk": 2,
        "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0},
    },
    "lfm2_moe": {
        **_EXPERTS,
        "layer_types": ["conv", "full_attention", "conv"],
        "num_dense_layers": 1,
        "conv_L_cache": 3,
        "conv_bias": True,
        "routed_scaling_factor": 1.5,
        "head_dim": ABSENT,
    },
    "mellum": {
        **_SLIDING,
        **_EXPERTS,
        "head_dim": 32,
        "attention_bias": True,
        "mlp_layer_types": ["sparse", "dense", "sparse"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5},
        },
    },
    "minimax_m2": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 32,
        "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
    },
    "mixtral": {"num_local_experts": 4, "sliding_window": 4},
    "olmoe": {
        **_SPECIAL_TOKENS,
        "num_experts": 4,
        "num_experts_per_tok": 3,
        "clip_qkv": 1.5,
        "head_dim": ABSENT,
    },
    "phimoe": {
        **_SPECIAL_TOKENS,
        "num_local_experts": 4,
        "attention_bias": True,
        "lm_head_bias": True,
        "sliding_window": 6,
        "router_jitter_noise": 0.2,
        "head_dim": ABSENT,
    },
    "qwen2_moe": {
        **_EXPERTS,
        "shared_expert_intermediate_size": 48,
        "mlp_only_layers": [1],
        "use_sliding_window": True,
        "sliding_window": 4,
        "max_window_layers": 2,
        "head_dim": ABSENT,
    },
    "solar_open": {
        **_SPECIAL_TOKENS,
        **_ROUTED_EXPERTS,
        "first_k_dense_replace": ABSENT,
        "intermediate_size": ABSENT,
        "head_dim": 32,
        "attention_bias": True,
    },
    "qwen3_moe": {**_EXPERTS, "decoder_sparse_step": 2, "norm_topk_prob": True, "head_dim": 32},
}

_NO_ATTENTION = {
    **{name: ABSENT for name in ("num_attention_heads", "num_key_value_heads", "head_dim")},
    "intermediate_size": ABSENT,
    "max_position_embeddings": ABSENT,
}
_DELTA = {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
}
_BAMBA = {
    **_SPECIAL_TOKENS,
    "head_dim": ABSENT,
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_chunk_size": 4,
}
CONFIGS |= {
    "lfm2": {
        "layer_types": ["conv", "full_attention", "conv"],
        "block_multiple_of": 16,
        "conv_L_cache": 3,
        "conv_bias": True,
        "head_dim": ABSENT,
    },
    "qwen3_5_text": {
        **_DELTA,
        "attention_bias": True,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "qwen3_5_moe_text": {
        **_DELTA,
        **_EXPERTS,
        "shared_expert_intermediate_size": 48,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "lfm2_moe": {
        "layer_types": ["conv", "full_attention", "conv"],
        "conv_L_cache": 3,
        "conv_bias": True,
        "head_dim": ABSENT,
        **_EXPERTS,
        "num_dense_layers": 1,
        "routed_scaling_factor": 1.5,
    },
    "mamba": {**_NO_ATTENTION, "state_size": 8, "conv_kernel": 4, "use_bias": True},
    "falcon_mamba": {**_NO_ATTENTION, "state_size": 8, "conv_kernel": 3},
    "mamba2": {
        **_NO_ATTENTION,
        "head_dim": 16,
        "num_heads": 8,
        "n_groups": 2,
        "state_size": 8,
        "chunk_size": 4,
        "use_bias": True,
    },
    "bamba": {
        **_BAMBA,
        "attn_layer_indices": [1],
        "attention_bias": True,
        "mlp_bias": True,
        "mamba_proj_bias": True,
    },
    "falcon_h1": {
        **_BAMBA,
        "mamba_d_ssm": 96,
        "mamba_n_heads": 6,
        "mamba_d_head": 16,
        "key_multiplier": 0.7,
        "attention_in_multiplier": 1.3,
        "attention_out_multiplier": 0.8,
        "ssm_in_multiplier": 1.2,
        "ssm_out_multiplier": 0.6,
        "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
        "mlp_multipliers": [1.4, 0.5],
        "embedding_multiplier": 2.0,
        "lm_head_multiplier": 0.6,
        "projectors_bias": True,
    },
    "qwen3_next": {
        **_DELTA,
        **_EXPERTS,
        "shared_expert_intermediate_size": 48,
        "mlp_only_layers": [1],
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "jamba": {
        **_SPECIAL_TOKENS,
        "head_dim": ABSENT,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "mamba_d_state": 8,
        "mamba_proj_bias": True,
    },
    "granitemoehybrid": {
        **_BAMBA,
        "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 48,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "logits_scaling": 2.0,
        "attention_multiplier": 0.3,
    },
    "nemotron_h": {
        **_SPECIAL_TOKENS,
        "num_hidden_layers": ABSENT,
        "layers_block_type": ["mamba", "moe", "attention", "mlp", "mamba"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 8,
        "chunk_size": 4,
        "use_bias": True,
        "mlp_bias": True,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 48,
        "routed_scaling_factor": 1.5,
    },
    "zamba2": {
        **_SPECIAL_TOKENS,
        "num_hidden_layers": 5,
        **_NO_GROUPS,
        "layers_block_type": ["mamba", "hybrid", "hybrid", "mamba", "hybrid"],
        "num_mem_blocks": 2,
        "mamba_d_state": 8,
        "mamba_ngroups": 2,
        "n_mamba_heads": 8,
        "chunk_size": 4,
        "use_shared_attention_adapter": True,
        "adapter_rank": 8,
        "use_mem_rope": True,
        "tie_word_embeddings": True,
    },
    "recurrent_gemma": {
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "head_dim": ABSENT,
        "max_position_embeddings": ABSENT,
        "attention_window_size": 4,
        "logits_soft_cap": 3.0,
        "tie_word_embeddings": True,
    },
    "minimax": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "block_size": 4,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "full_attn_alpha_factor": 1.3,
        "full_attn_beta_factor": 0.8,
        "linear_attn_alpha_factor": 1.1,
        "linear_attn_beta_factor": 0.9,
        "mlp_alpha_factor": 0.7,
        "mlp_beta_factor": 1.2,
    },
}

_LATENT = {
    "num_key_value_heads": 4,
    "head_dim": ABSENT,
    "q_lora_rank": 40,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 20,
}
_LATENT_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 0.707,
    "mscale_all_dim": 1.0,
}
_LATENT_EXPERTS = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 3,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
# The last layers read the keys and values of those before.
_SHARED_KEYS = {
    **_SPECIAL_TOKENS,
    "num_hidden_layers": 6,
    "layer_types": [
        *("sliding_attention", "sliding_attention", "full_attention"),
        *("sliding_attention", "full_attention", "full_attention"),
    ],
    "sliding_window": 4,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 200,
    "final_logit_softcapping": 5.0,
    "tie_word_embeddings": True,
}
CONFIGS |= {
    "gpt_oss": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 4,
        "swiglu_limit": 0.8,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 8.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 8,
        },
    },
    "deepseek_v2": {
        **_LATENT,
        **_LATENT_EXPERTS,
        "topk_method": "group_limited_greedy",
        "rope_parameters": _LATENT_YARN,
        "mlp_bias": True,
    },
    "deepseek_v3": {
        **_LATENT,
        **_LATENT_EXPERTS,
        "attention_bias": True,
        "rope_parameters": _LATENT_YARN,
    },
    "minicpm3": {
        **_SPECIAL_TOKENS,
        **_LATENT,
        "attention_bias": True,
        "mlp_bias": True,
        "scale_emb": 3,
        "dim_model_base": 32,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0 + 0.1 * i for i in range(4)],
            "long_factor": [2.0] * 4,
            "original_max_position_embeddings": 10,
        },
    },
    "mistral4": {
        **_SPECIAL_TOKENS,
        **_LATENT,
        **_LATENT_EXPERTS,
        "topk_group": 2,
        "rope_parameters": {
            **_LATENT_YARN,
            "original_max_position_embeddings": 4,
            "llama_4_scaling_beta": 0.5,
        },
    },
    "youtu": {**_LATENT, "rope_interleave": False, "tie_word_embeddings": True},
    "glm4_moe_lite": {
        **_LATENT,
        **{name: value for name, value in _LATENT_EXPERTS.items() if name != "n_group"},
        "first_k_dense_replace": ABSENT,
        "topk_group": 1,
        "mlp_layer_types": ["dense", "sparse", "dense"],
    },
    "llama4_text": {
        "num_hidden_layers": 4,
        "intermediate_size": 48,
        "intermediate_size_mlp": 96,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "interleave_moe_layer_step": 2,
        "no_rope_layers": [1, 0, 1, 1],
        "attention_chunk_size": 5,
        "floor_scale": 3,
        "attn_scale": 0.5,
        "attention_bias": True,
    },
    "gemma3n_text": {
        **_SHARED_KEYS,
        "intermediate_size": [96, 96, 96, 96, 64, 64],
        "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0, 0.0, 0.0],
        "altup_active_idx": 1,
        "altup_num_inputs": 3,
        "laurel_rank": 8,
    },
    "gemma4_text": {
        **_SHARED_KEYS,
        "vocab_size_per_layer_input": 211,
        "global_head_dim": 32,
        "use_double_wide_mlp": True,
    },
}

# Layouts that one model_type has beside that of `CONFIGS`.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "cohere-qk-norm": ("cohere", {"use_qk_norm": True, "logit_scale": 1.0}),
    "falcon-40b": (
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True, "ffn_hidden_size": 96},
    ),
    "falcon-one-norm": (
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon-alibi": (
        "falcon",
        {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "cohere2_moe-sigmoid": (
        "cohere2_moe",
        {
            "expert_selection_fn": "sigmoid",
            "shared_expert_combination_strategy": "sum",
            "rms_norm_eps": 1e-6,
            "prefix_dense_sliding_window_pattern": 2,
        },
    ),
    "deepseek_v2-lite": (
        "deepseek_v2",
        {"q_lora_rank": None, "topk_method": "greedy", "n_group": None, "topk_group": None},
    ),
    "gemma4_text-experts": (
        "gemma4_text",
        {
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 0,
            "use_double_wide_mlp": False,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
        },
    ),
    "gpt_bigcode-heads": ("gpt_bigcode", {"multi_query": False}),
    "olmo-clip": ("olmo", {"clip_qkv": 1.5}),
    "opt-350m": ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    "phimoe-longrope": (
        "phimoe",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0 + 0.1 * i for i in range(8)],
                "long_factor": [2.0] * 8,
                "short_mscale": 1.2,
                "long_mscale": 1.2,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "phi-qk-norm": ("phi", {"qk_layernorm": True}),
    "stablelm-qk-norm": ("stablelm", {"qk_layernorm": True}),
    "falcon_h1-norm": ("falcon_h1", {"mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    "stablelm-parallel": ("stablelm", {"use_parallel_residual": True}),
}

# transformers' eager attention adds the bias twice: with the scores, and in the mask.
_NOT_EAGER = frozenset({"falcon-alibi"})
# transformers has these, and does not find them by their configuration.
_NOT_AUTOMATIC = {"mistral4": transformers.Mistral4ForCausalLM}


def make_config(model_type: str, **overrides: Any) -> transformers.PretrainedConfig:
    """Return the tiny config of `model_type`, or of a variant."""
    model_type, variant = VARIANTS.get(model_type, (model_type, {}))
    own = {**CONFIGS.get(model_type, {}), **variant, **overrides}
    settings = {key: value for key, value in {**TINY, **own}.items() if value is not ABSENT}
    return transformers.AutoConfig.for_model(model_type, **settings)


def make_model(model_type: str, seed: int = 0, **overrides: Any) -> transformers.PreTrainedModel:
    """Return a model of `model_type`, or of a variant, whose every weight matters, in float32."""
    attention = "sdpa" if model_type in _NOT_EAGER else "eager"
    config = make_config(model_type, **overrides)
    torch.manual_seed(seed)
    if model_type in _NOT_AUTOMATIC:
        config._attn_implementation = attention
        model = _NOT_AUTOMATIC[model_type](config).eval()
    else:
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation=attention, dtype=torch.float32
        ).eval()
    randomize(model, seed)
    return model


# Means of parameters that make a state forget, neither at once nor hardly ever.
_DECAYS = {"A_log": -1.0, "recurrent_param": -3.0}


@torch.no_grad()
def randomize(model: torch.nn.Module, seed: int) -> None:
    """Give weights the scale of trained ones: no norm of ones, no bias of zeros, no flat scores."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        decay = next((mean for part, mean in _DECAYS.items() if part in name), None)
        if decay is not None:
            parameter.copy_(decay + 0.5 * noise)
        elif parameter.ndim >= 2:
            scale = 1.2 / parameter.shape[-1] ** 0.5
            # Doubled queries and keys make attention choose, so that a wrong mask shows. Those of
            # Zamba 2 are halved: what it adds to them, and heads of twice the width, do that.
            factor = 0.5 if "shared_transformer" in name else 2.0
            asks = ("q_proj", "k_proj", "linear_q_adapter", "linear_k_adapter")
            scale *= factor if any(part in name for part in asks) else 1.0
            parameter.copy_(noise * scale)
        elif name.endswith("bias"):
            parameter.copy_(noise * 0.5)
        elif name.endswith("sinks"):
            parameter.copy_(noise * 2.0)
        else:
            parameter.copy_(1.0 + 0.3 * noise)
    # Enough to change which experts are chosen, not so much that the tokens do not matter.
    for name, correction in [*model.named_buffers(), *model.named_parameters()]:
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            correction.copy_(0.1 * torch.randn(correction.shape, generator=generator))
        if name.endswith("layer_scalar"):
            correction.copy_(0.7 + 0.2 * torch.rand(correction.shape, generator=generator))


# Models that give no cache back: the whole row in one pass is their only reference.
_KEEPS_ITS_CACHE = frozenset({"recurrent_gemma"})


@torch.no_grad()
def logits_alone(
    model: transformers.PreTrainedModel,
    tokens: npt.NDArray[np.int64],
    decode_steps: int = 0,
    chunks: tuple[int, ...] = (),
) -> npt.NDArray[np.float32]:
    """Return the logits `[S, vocab]` of one row that runs by itself.

    Args:
        model: The reference.
        tokens: The row; all of it in one pass, but for
        decode_steps: tokens at the end that follow one at a time.
        chunks: Lengths of the parts that the rest is fed in where that makes a difference: LongRoPE
            changes its table once a row is long, and what is in the cache stays as it is.
    """
    cached = model.config.model_type not in _KEEPS_ITS_CACHE
    split = len(tokens) - (decode_steps if cached else 0)
    long_rope = (getattr(model.config, "rope_parameters", None) or {}).get("rope_type")
    ends = [*(np.cumsum(chunks).tolist() if long_rope == "longrope" else ()), split]
    parts = [slice(a, b) for a, b in itertools.pairwise([0, *dict.fromkeys(ends)])]
    parts += [slice(i, i + 1) for i in range(split, len(tokens))]
    # Bamba begins to count anew in each call; models without positions take none.
    numbered = "position_ids" in inspect.signature(model.forward).parameters
    cache, logits = None, []
    for part in parts:
        places = torch.arange(len(tokens))[None, part]
        result = model(
            torch.from_numpy(tokens[part])[None],
            cache=cache,
            use_cache=cached,
            **({"position_ids": places} if numbered else {}),
        )
        cache = result.past_key_values if cached else None
        logits.append(result.logits[0].numpy())
    return np.concatenate(logits)
