"""What `general.architecture` means: fields, names of tensors, and what llama.cpp changed in them.

Source: llama.cpp, `convert_hf_to_gguf.py` (what is written) and `src/llama-model.cpp` (what its
graphs take for granted because it is not written). Keys of metadata are without the architecture in
front; names of tensors without block and suffix.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

_NOTHING: Mapping[str, Any] = MappingProxyType({})

LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_SANDWICH = {
    **LAYER,
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

_FIELDS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
}
_RMS = {**_FIELDS, "attention.layer_norm_rms_epsilon": "rms_norm_eps"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What a file says of its model, for the fields that need more than one key.

    Attributes:
        values: Metadata of the architecture, by key without the architecture in front.
        tensors: Names of the tensors.
        head_size: Width of a head.
    """

    values: Mapping[str, Any]
    tensors: frozenset[str]
    head_size: int

    def has_bias(self, name: str) -> bool:
        """Return whether a layer's part `name` has a bias, as the first layer has it or not."""
        return f"blk.0.{name}.bias" in self.tensors


Derive = Callable[[Facts], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GgufFamily:
    """One `general.architecture`.

    Attributes:
        model_type: The HuggingFace `model_type`.
        fields: Key of the metadata -> field of `config.json`.
        derive: Fields that more than one key decides, or none: those that llama.cpp has fixed.
        derived: Keys that `derive` reads, beside those of `fields`.
        layer: Part of a layer -> its name in HuggingFace's checkpoints.
        joined: Name of a parameter of all experts -> the parts whose rows it has, in their order.
        states_head_size: `head_dim` is a field of the config.
        partial_rotary: `partial_rotary_factor` is a field of the config.
        permuted: Rows of queries and keys are in the order of interleaved rotary embedding.
        norms_plus_one: Weights of norms have one added.
    """

    model_type: str
    fields: Mapping[str, str] = dataclasses.field(default_factory=lambda: _RMS)
    derive: Derive = lambda facts: _NOTHING
    derived: frozenset[str] = frozenset()
    layer: Mapping[str, str] = dataclasses.field(default_factory=lambda: LAYER)
    joined: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=lambda: _NOTHING)
    states_head_size: bool = True
    partial_rotary: bool = False
    permuted: bool = False
    norms_plus_one: bool = False


def _llama_biases(facts: Facts) -> Mapping[str, Any]:
    return {"attention_bias": facts.has_bias("attn_q"), "mlp_bias": facts.has_bias("ffn_up")}


def _attention_bias(facts: Facts) -> Mapping[str, Any]:
    return {"attention_bias": facts.has_bias("attn_q")}


def _gemma_scale(layers: int) -> Derive:
    """Return what gives `query_pre_attn_scalar`, which no key holds.

    Of the largest model, the one with so many layers, it is the width that its heads would have if
    they made up the hidden size; of others it is the width of a head.
    """

    def derive(facts: Facts) -> Mapping[str, Any]:
        width, heads = facts.values["embedding_length"], facts.values["attention.head_count"]
        largest = facts.values["block_count"] == layers
        return {"query_pre_attn_scalar": width // heads if largest else facts.head_size}

    return derive


def _gemma3(facts: Facts) -> Mapping[str, Any]:
    fields = {
        **_gemma_scale(62)(facts),
        **_attention_bias(facts),
        "rope_local_base_freq": facts.values.get("rope.freq_base_swa", 10000.0),
    }
    pattern = facts.values.get("attention.sliding_window_pattern", 6)
    layers = facts.values["block_count"]
    slides = pattern if isinstance(pattern, list) else [(i + 1) % pattern for i in range(layers)]
    types = ["sliding_attention" if each else "full_attention" for each in slides]
    return {**fields, "layer_types": types}


def _phi3(facts: Facts) -> Mapping[str, Any]:
    # The fields of a checkpoint for 4096 tokens, where there is no second length.
    length = facts.values.get("rope.scaling.original_context_length")
    original = facts.values["context_length"] if length is None else length
    return {"original_max_position_embeddings": original, "pad_token_id": None}


_EXPERTS = {
    "mlp.experts.gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"),
    "mlp.experts.down_proj": ("ffn_down_exps",),
}
_SPARSE = {**_RMS, "expert_used_count": "num_experts_per_tok"}
_ROUTED = {**LAYER, "ffn_gate_inp": "mlp.gate"}

FAMILIES: Mapping[str, GgufFamily] = {
    "llama": GgufFamily(model_type="llama", derive=_llama_biases, permuted=True),
    "qwen2": GgufFamily(model_type="qwen2", states_head_size=False),
    "qwen3": GgufFamily(model_type="qwen3", derive=_attention_bias),
    "qwen2moe": GgufFamily(
        model_type="qwen2_moe",
        fields={
            **_SPARSE,
            "expert_count": "num_experts",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        },
        derive=lambda facts: {"norm_topk_prob": False},
        layer={
            **_ROUTED,
            "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
            "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
            "ffn_up_shexp": "mlp.shared_expert.up_proj",
            "ffn_down_shexp": "mlp.shared_expert.down_proj",
        },
        joined=_EXPERTS,
        states_head_size=False,
    ),
    "qwen3moe": GgufFamily(
        model_type="qwen3_moe",
        fields={
            **_SPARSE,
            "expert_count": "num_experts",
            "expert_feed_forward_length": "moe_intermediate_size",
        },
        derive=lambda facts: {**_attention_bias(facts), "norm_topk_prob": True},
        layer=_ROUTED,
        joined=_EXPERTS,
    ),
    "gemma": GgufFamily(model_type="gemma", derive=_attention_bias, norms_plus_one=True),
    "gemma2": GgufFamily(
        model_type="gemma2",
        fields={
            **_RMS,
            "attention.sliding_window": "sliding_window",
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        derive=_gemma_scale(46),
        layer=_SANDWICH,
        norms_plus_one=True,
    ),
    "gemma3": GgufFamily(
        model_type="gemma3_text",
        fields={
            **_RMS,
            "attention.sliding_window": "sliding_window",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        derive=_gemma3,
        derived=frozenset({"rope.freq_base_swa", "attention.sliding_window_pattern"}),
        layer=_SANDWICH,
        norms_plus_one=True,
    ),
    "phi3": GgufFamily(
        model_type="phi3",
        fields={**_RMS, "attention.sliding_window": "sliding_window"},
        derive=_phi3,
        layer={**LAYER, "ffn_up": "mlp.gate_up_proj"},
        states_head_size=False,
        partial_rotary=True,
    ),
    "starcoder2": GgufFamily(
        model_type="starcoder2",
        fields={**_FIELDS, "attention.layer_norm_epsilon": "norm_epsilon"},
        derive=lambda facts: {"use_bias": facts.has_bias("attn_q")},
        layer={**LAYER, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        states_head_size=False,
    ),
    "granite": GgufFamily(
        model_type="granite",
        fields={
            **_RMS,
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
        derive=_llama_biases,
        states_head_size=False,
        permuted=True,
    ),
    "smollm3": GgufFamily(
        model_type="smollm3", derive=_llama_biases, states_head_size=False, permuted=True
    ),
    "olmo2": GgufFamily(
        model_type="olmo2",
        derive=_attention_bias,
        layer={
            **LAYER,
            "post_attention_norm": "post_attention_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
        states_head_size=False,
    ),
    "stablelm": GgufFamily(
        model_type="stablelm",
        fields={
            **_FIELDS,
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "use_parallel_residual": "use_parallel_residual",
        },
        derive=lambda facts: {"use_qkv_bias": facts.has_bias("attn_q")},
        states_head_size=False,
        partial_rotary=True,
    ),
    "command-r": GgufFamily(
        model_type="cohere",
        fields={
            **_FIELDS,
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "logit_scale": "logit_scale",
        },
        derive=lambda facts: {"use_qk_norm": "blk.0.attn_q_norm.weight" in facts.tensors},
        states_head_size=False,
    ),
    "cohere2": GgufFamily(
        model_type="cohere2",
        fields={
            **_FIELDS,
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "attention.sliding_window": "sliding_window",
            "logit_scale": "logit_scale",
        },
        states_head_size=True,
    ),
}

WITH_EXPERTS: Mapping[str, GgufFamily] = {
    "llama": GgufFamily(
        model_type="mixtral",
        fields={**_SPARSE, "expert_count": "num_local_experts"},
        layer=_ROUTED,
        joined=_EXPERTS,
        permuted=True,
    ),
}
"""Families that an architecture is when it has experts, where it may have none."""
