"""Tiny random transformers models, and the logits that a row has when it runs alone."""

from __future__ import annotations

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
    "gpt_bigcode-heads": ("gpt_bigcode", {"multi_query": False}),
    "olmo-clip": ("olmo", {"clip_qkv": 1.5}),
    "opt-350m": ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    "phi-qk-norm": ("phi", {"qk_layernorm": True}),
    "stablelm-qk-norm": ("stablelm", {"qk_layernorm": True}),
    "stablelm-parallel": ("stablelm", {"use_parallel_residual": True}),
}

# transformers' eager attention adds the bias twice: with the scores, and in the mask.
_NOT_EAGER = frozenset({"falcon-alibi"})


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
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=attention, dtype=torch.float32
    ).eval()
    randomize(model, seed)
    return model


@torch.no_grad()
def randomize(model: torch.nn.Module, seed: int) -> None:
    """Give weights the scale of trained ones: no norm of ones, no bias of zeros, no flat scores."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim >= 2:
            scale = 1.2 / parameter.shape[-1] ** 0.5
            # Doubled queries and keys make attention choose, so that a wrong mask shows.
            scale *= 2.0 if any(part in name for part in ("q_proj", "k_proj")) else 1.0
            parameter.copy_(noise * scale)
        elif name.endswith("bias"):
            parameter.copy_(noise * 0.5)
        else:
            parameter.copy_(1.0 + 0.3 * noise)


@torch.no_grad()
def logits_alone(
    model: transformers.PreTrainedModel, tokens: npt.NDArray[np.int64], decode_steps: int = 0
) -> npt.NDArray[np.float32]:
    """Return the logits `[S, vocab]` of one row that runs by itself.

    Args:
        model: The reference.
        tokens: The row; all of it in one pass, but for
        decode_steps: tokens at the end that follow one at a time, where that makes a difference
            (LongRoPE changes its table once a row is long).
    """
    split = len(tokens) - decode_steps
    parts = [tokens[:split], *(tokens[i : i + 1] for i in range(split, len(tokens)))]
    cache, logits = None, []
    for part in parts:
        result = model(torch.from_numpy(part)[None], cache=cache, use_cache=True)
        cache = result.past_key_values
        logits.append(result.logits[0].numpy())
    return np.concatenate(logits)
