"""Architectures of GGUF files from before llama: GPT-2 and those with its queries in one matrix.

Source: llama.cpp, `convert_hf_to_gguf.py` and `src/llama-model.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mobius_hf.gguf.family import Facts, GgufFamily
from mobius_hf.gguf.parts import BASE, LAYER_EPS
from mobius_hf.gguf.restore import grouped, transposed

_GPT2_FIELDS = {
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "feed_forward_length": "n_inner",
    "block_count": "n_layer",
    "attention.head_count": "n_head",
    LAYER_EPS: "layer_norm_epsilon",
}
_GPT2_LAYER = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_GPT2_TOP = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
_FALCON_FIELDS = {
    **BASE,
    "feed_forward_length": "ffn_hidden_size",
    "attention.head_count_kv": "num_kv_heads",
    LAYER_EPS: "layer_norm_epsilon",
}
_FALCON_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
_WORD_EMBEDDINGS = {
    "token_embd": "transformer.word_embeddings",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
_LARGEST_NEOX = 44


def _falcon(facts: Facts) -> Mapping[str, Any]:
    """Return the flags of the layout: one key head is that of 7B, several that of 11B."""
    several = facts.largest("attention.head_count_kv") > 1
    return {
        "new_decoder_architecture": several,
        "multi_query": not several,
        **({"num_ln_in_parallel_attn": 1} if several else {}),
    }


def _neox(facts: Facts) -> Mapping[str, Any]:
    """Return what rotates, and the form of GELU, which no key holds.

    It is approximate in the largest model alone.
    """
    rotates = facts.values.get("rope.dimension_count", facts.head_size)
    return {
        "hidden_act": "gelu_fast" if facts.layers == _LARGEST_NEOX else "gelu",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": facts.theta,
            "partial_rotary_factor": rotates / facts.head_size,
            **(facts.rope_scaling or {}),
        },
    }


def _mpt(facts: Facts) -> Mapping[str, Any]:
    bias = facts.values.get("attention.max_alibi_bias", 0.0)
    return {
        "attn_config": {
            "alibi": bias > 0,
            "alibi_bias_max": int(bias) if bias == int(bias) else bias,
            "clip_qkv": facts.values.get("attention.clamp_kqv"),
        }
    }


CLASSIC: Mapping[str, GgufFamily] = {
    "gpt2": GgufFamily(
        model_type="gpt2",
        fields=_GPT2_FIELDS,
        layer=_GPT2_LAYER,
        prefix="transformer.h",
        top=_GPT2_TOP,
        restored=dict.fromkeys(
            ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight"),
            transposed,
        ),
        heads="implied",
        rotary=False,
    ),
    "starcoder": GgufFamily(
        model_type="gpt_bigcode",
        fields=_GPT2_FIELDS,
        says={"multi_query": True},
        fixed={"attention.head_count_kv": 1},
        layer=_GPT2_LAYER,
        prefix="transformer.h",
        top=_GPT2_TOP,
        heads="implied",
        rotary=False,
    ),
    "falcon": GgufFamily(
        model_type="falcon",
        fields=_FALCON_FIELDS,
        flags={"bias": "attn_qkv.bias"},
        derive=_falcon,
        layer=_FALCON_LAYER,
        prefix="transformer.h",
        top=_WORD_EMBEDDINGS,
        restored={"attn_qkv": grouped},
        heads="implied",
    ),
    "bloom": GgufFamily(
        model_type="bloom",
        fields={
            "embedding_length": "hidden_size",
            "block_count": "n_layer",
            "attention.head_count": "n_head",
            LAYER_EPS: "layer_norm_epsilon",
        },
        fixed={"attention.max_alibi_bias": 8.0},
        aside=frozenset({"context_length", "feed_forward_length", "attention.head_count_kv"}),
        layer={**_FALCON_LAYER, "ffn_norm": "post_attention_layernorm"},
        prefix="transformer.h",
        top={**_WORD_EMBEDDINGS, "token_embd_norm": "transformer.word_embeddings_layernorm"},
        restored={"attn_qkv": grouped},
        heads="implied",
        rotary=False,
    ),
    "gptneox": GgufFamily(
        model_type="gpt_neox",
        fields={
            **{key: name for key, name in BASE.items() if key != "attention.head_count_kv"},
            LAYER_EPS: "layer_norm_eps",
            "use_parallel_residual": "use_parallel_residual",
        },
        flags={"attention_bias": "attn_qkv.bias"},
        derive=_neox,
        aside=frozenset({"attention.head_count_kv"}),
        layer={
            **_FALCON_LAYER,
            "attn_qkv": "attention.query_key_value",
            "attn_output": "attention.dense",
            "ffn_norm": "post_attention_layernorm",
        },
        prefix="gpt_neox.layers",
        top={
            "token_embd": "gpt_neox.embed_in",
            "output_norm": "gpt_neox.final_layer_norm",
            "output": "embed_out",
        },
        restored={"attn_qkv": grouped},
        heads="implied",
        rotary=False,
    ),
    "mpt": GgufFamily(
        model_type="mpt",
        fields={
            "context_length": "max_seq_len",
            "embedding_length": "d_model",
            "block_count": "n_layers",
            "attention.head_count": "n_heads",
            LAYER_EPS: "layer_norm_epsilon",
        },
        derive=_mpt,
        derived=frozenset({"attention.max_alibi_bias", "attention.clamp_kqv"}),
        aside=frozenset({"feed_forward_length"}),
        layer={
            "attn_norm": "norm_1",
            "attn_qkv": "attn.Wqkv",
            "attn_output": "attn.out_proj",
            "ffn_norm": "norm_2",
            "ffn_up": "ffn.up_proj",
            "ffn_down": "ffn.down_proj",
        },
        prefix="transformer.blocks",
        top={
            "token_embd": "transformer.wte",
            "output_norm": "transformer.norm_f",
            "output": "lm_head",
        },
        heads="implied",
        rotary=False,
    ),
}
"""By `general.architecture`."""

FALCON_TWO_NORMS = GgufFamily(
    model_type="falcon",
    fields=_FALCON_FIELDS,
    flags={"bias": "attn_qkv.bias"},
    says={"new_decoder_architecture": True, "num_ln_in_parallel_attn": 2},
    layer={**_FALCON_LAYER, "attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"},
    prefix="transformer.h",
    top=_WORD_EMBEDDINGS,
    restored={"attn_qkv": grouped},
    heads="implied",
)
"""Falcon 40B and 180B."""
