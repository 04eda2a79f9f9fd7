"""What llama.cpp's converter says of a model of each family. Source: `convert_hf_to_gguf.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any

import gguf

Hub = Mapping[str, Any]
Add = Callable[[gguf.GGUFWriter, Hub], None]
_EXPERTS = frozenset({"n_routed_experts", "num_experts_per_tok", "n_group", "topk_group"})
# As the hub has them, and as transformers 5 writes them.
_ATTENTION = frozenset({"attention", "full_attention"})
SIGMOID = gguf.ExpertGatingFuncType.SIGMOID


def add_metadata(writer: gguf.GGUFWriter, hub: Hub) -> None:
    """Write the metadata of a model with this config.json."""
    kind = hub["model_type"]
    if kind == "nemotron_h" and "moe" not in hub["layers_block_type"]:
        hub = {name: value for name, value in hub.items() if name not in _EXPERTS}
    if kind not in _ALONE:
        _base(writer, hub)
    if kind in _OWN:
        _OWN[kind](writer, hub)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _first(hub: Hub, *names: str) -> Any:
    return next((hub[name] for name in names if hub.get(name) is not None), None)


def _head_size(hub: Hub) -> int:
    return int(hub.get("head_dim") or hub["hidden_size"] // hub["num_attention_heads"])


def _base(writer: gguf.GGUFWriter, hub: Hub) -> None:
    """Write what is read of any model that has no list of its own."""
    for add, names in {
        writer.add_block_count: ("num_hidden_layers", "n_layer", "n_layers"),
        writer.add_context_length: ("max_position_embeddings", "n_positions"),
        writer.add_embedding_length: ("hidden_size", "n_embd"),
        writer.add_feed_forward_length: ("intermediate_size_mlp", "intermediate_size", "n_inner"),
        writer.add_head_count: ("num_attention_heads", "n_head"),
        writer.add_head_count_kv: ("num_key_value_heads",),
        writer.add_layer_norm_rms_eps: ("rms_norm_eps", "norm_eps"),
        writer.add_layer_norm_eps: ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
        writer.add_expert_count: ("num_local_experts", "num_experts", "n_routed_experts"),
        writer.add_expert_used_count: ("num_experts_per_tok", "top_k_experts"),
        writer.add_expert_group_count: ("n_group",),
        writer.add_expert_group_used_count: ("topk_group",),
        writer.add_key_length: ("head_dim",),
        writer.add_value_length: ("head_dim",),
    }.items():
        value = _first(hub, *names)
        if value is not None:
            add(value)
    _rope(writer, hub)


def _rope(writer: gguf.GGUFWriter, hub: Hub) -> None:
    both = hub.get("rope_parameters") or {}
    rope = both.get("full_attention", both)
    if rope.get("rope_theta") is not None:
        writer.add_rope_freq_base(rope["rope_theta"])
    if (sliding := both.get("sliding_attention")) is not None:
        writer.add_rope_freq_base_swa(sliding["rope_theta"])
    kind = rope.get("rope_type")
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "longrope":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for name, add in {
            "attention_factor": writer.add_rope_scaling_yarn_attn_factor,
            "beta_fast": writer.add_rope_scaling_yarn_beta_fast,
            "beta_slow": writer.add_rope_scaling_yarn_beta_slow,
        }.items():
            if rope.get(name) is not None:
                add(rope[name])


def _rotating(hub: Hub) -> int:
    return int(_head_size(hub) * hub["rope_parameters"].get("partial_rotary_factor", 1.0))


def _llama(writer: gguf.GGUFWriter, hub: Hub) -> None:
    writer.add_vocab_size(hub["vocab_size"])
    writer.add_rope_dimension_count(_head_size(hub))


def _partial(writer: gguf.GGUFWriter, hub: Hub) -> None:
    writer.add_rope_dimension_count(_rotating(hub))


def _gemma(writer: gguf.GGUFWriter, hub: Hub) -> None:
    if hub.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(hub["attn_logit_softcapping"])
    if hub.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(hub["final_logit_softcapping"])
    if hub.get("sliding_window"):
        writer.add_sliding_window(hub["sliding_window"])


def _sliding_layers(writer: gguf.GGUFWriter, hub: Hub) -> None:
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in hub["layer_types"]])


def _gemma3n(writer: gguf.GGUFWriter, hub: Hub) -> None:
    _gemma(writer, hub)
    writer.add_altup_active_idx(hub["altup_active_idx"])
    writer.add_altup_num_inputs(hub["altup_num_inputs"])
    writer.add_embedding_length_per_layer_input(hub["hidden_size_per_layer_input"])
    writer.add_shared_kv_layers(hub["num_kv_shared_layers"])
    # torch's quantile of 0 is minus infinity, as it should be.
    writer.add_activation_sparsity_scale(
        [
            NormalDist().inv_cdf(part) if part else -math.inf
            for part in hub["activation_sparsity_pattern"]
        ]
    )
    _sliding_layers(writer, hub)


def with_global_heads(hub: Hub) -> dict[str, Any]:
    """Return Gemma 4's config as it is on the hub: transformers 5 writes heads layer by layer."""
    own = next(iter(hub.get("per_layer_config", {}).values()), {})
    heads = {"num_global_key_value_heads": own.get("num_key_value_heads")}
    return {**hub, **heads, "global_head_dim": own.get("head_dim", hub["head_dim"])}


def _gemma4(writer: gguf.GGUFWriter, hub: Hub) -> None:
    hub = with_global_heads(hub)
    _gemma(writer, hub)
    layers, shared = hub["num_hidden_layers"], hub["num_kv_shared_layers"]
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(hub["hidden_size_per_layer_input"] or 0)
    _sliding_layers(writer, hub)
    full, sliding = hub["global_head_dim"], hub["head_dim"]
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(full)
    writer.add_key_length_swa(sliding)
    writer.add_value_length_swa(sliding)
    writer.add_rope_dimension_count_swa(sliding)
    if hub.get("moe_intermediate_size"):
        writer.add_expert_feed_forward_length(hub["moe_intermediate_size"])
    width = hub["intermediate_size"]
    if hub.get("use_double_wide_mlp"):
        writer.add_feed_forward_length([width] * (layers - shared) + [2 * width] * shared)
    if (heads := hub.get("num_global_key_value_heads")) is not None:
        slides = [kind == "sliding_attention" for kind in hub["layer_types"]]
        own = hub["num_key_value_heads"]
        writer.add_head_count_kv([own if each else heads for each in slides])


def _phi3(writer: gguf.GGUFWriter, hub: Hub) -> None:
    rope = hub["rope_parameters"]
    writer.add_rope_dimension_count(_rotating(hub))
    writer.add_sliding_window(hub.get("sliding_window") or 0)
    if "original_max_position_embeddings" in rope:
        original = rope["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        stretch = hub["max_position_embeddings"] / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(original)))


def _phi2(writer: gguf.GGUFWriter, hub: Hub) -> None:
    _partial(writer, hub)
    writer.add_head_count_kv(hub["num_attention_heads"])


def _granite(writer: gguf.GGUFWriter, hub: Hub) -> None:
    _llama(writer, hub)
    for name, add in {
        "attention_multiplier": writer.add_attention_scale,
        "embedding_multiplier": writer.add_embedding_scale,
        "residual_multiplier": writer.add_residual_scale,
        "logits_scaling": writer.add_logit_scale,
        "shared_intermediate_size": writer.add_expert_shared_feed_forward_length,
    }.items():
        if hub.get(name):
            add(hub[name])


def _hybrid_states(writer: gguf.GGUFWriter, hub: Hub) -> None:
    writer.add_ssm_conv_kernel(hub["mamba_d_conv"])
    writer.add_ssm_state_size(hub["mamba_d_state"])
    writer.add_ssm_group_count(hub["mamba_n_groups"])
    writer.add_ssm_time_step_rank(hub["mamba_n_heads"])


def _granite_hybrid(writer: gguf.GGUFWriter, hub: Hub) -> None:
    _granite(writer, hub)
    _hybrid_states(writer, hub)
    writer.add_ssm_inner_size(hub["mamba_expand"] * hub["hidden_size"])
    kinds, heads = hub["layer_types"], hub["num_key_value_heads"]
    writer.add_head_count_kv([heads if kind in _ATTENTION else 0 for kind in kinds])
    writer.add_rope_scaling_finetuned(False)
    writer.add_context_length(2**20)


def _falcon(writer: gguf.GGUFWriter, hub: Hub) -> None:
    writer.add_context_length(2048)
    writer.add_tensor_data_layout("jploski")
    writer.add_embedding_length(hub["hidden_size"])
    writer.add_feed_forward_length(4 * hub["hidden_size"])
    writer.add_block_count(hub["num_hidden_layers"])
    writer.add_head_count(hub["num_attention_heads"])
    writer.add_head_count_kv(hub["num_kv_heads"] if hub["new_decoder_architecture"] else 1)
    writer.add_layer_norm_eps(hub["layer_norm_epsilon"])


def _gpt2(writer: gguf.GGUFWriter, hub: Hub) -> None:
    writer.add_block_count(hub["n_layer"])
    writer.add_context_length(hub["n_positions"])
    writer.add_embedding_length(hub["n_embd"])
    writer.add_feed_forward_length(4 * hub["n_embd"])
    writer.add_head_count(hub["n_head"])
    writer.add_layer_norm_eps(hub["layer_norm_epsilon"])
    if hub["model_type"] == "gpt_bigcode":
        writer.add_head_count_kv(1)


def _bloom(writer: gguf.GGUFWriter, hub: Hub) -> None:
    writer.add_context_length(2048)
    writer.add_embedding_length(hub["hidden_size"])
    writer.add_feed_forward_length(4 * hub["hidden_size"])
    writer.add_block_count(hub["n_layer"])
    writer.add_head_count(hub["n_head"])
    writer.add_head_count_kv(hub["n_head"])
    writer.add_layer_norm_eps(hub["layer_norm_epsilon"])


def _neox(writer: gguf.GGUFWriter, hub: Hub) -> None:
    writer.add_context_length(hub["max_position_embeddings"])
    writer.add_embedding_length(hub["hidden_size"])
    writer.add_block_count(hub["num_hidden_layers"])
    writer.add_feed_forward_length(hub["intermediate_size"])
    writer.add_rope_dimension_count(_rotating(hub))
    writer.add_head_count(hub["num_attention_heads"])
    writer.add_parallel_residual(hub["use_parallel_residual"])
    writer.add_layer_norm_eps(hub["layer_norm_eps"])


def _mpt(writer: gguf.GGUFWriter, hub: Hub) -> None:
    attention = hub["attn_config"]
    writer.add_context_length(hub["max_seq_len"])
    writer.add_embedding_length(hub["d_model"])
    writer.add_block_count(hub["n_layers"])
    writer.add_feed_forward_length(4 * hub["d_model"])
    writer.add_head_count(hub["n_heads"])
    writer.add_layer_norm_eps(1e-5)
    if attention["clip_qkv"] is not None:
        writer.add_clamp_kqv(attention["clip_qkv"])
    writer.add_max_alibi_bias(attention["alibi_bias_max"] if attention["alibi"] else 0.0)


def _stablelm(writer: gguf.GGUFWriter, hub: Hub) -> None:
    _partial(writer, hub)
    writer.add_parallel_residual(hub.get("use_parallel_residual", True))


def _cohere(writer: gguf.GGUFWriter, hub: Hub) -> None:
    writer.add_logit_scale(hub["logit_scale"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if hub.get("sliding_window"):
        writer.add_sliding_window(hub["sliding_window"])


def _olmo(writer: gguf.GGUFWriter, hub: Hub) -> None:
    writer.add_layer_norm_eps(1e-5)
    if hub.get("clip_qkv") is not None:
        writer.add_clamp_kqv(hub["clip_qkv"])


def _windows(writer: gguf.GGUFWriter, hub: Hub) -> None:
    if hub.get("sliding_window") is not None:
        writer.add_sliding_window(hub["sliding_window"])
        _sliding_layers(writer, hub)


def _exaone_moe(writer: gguf.GGUFWriter, hub: Hub) -> None:
    _windows(writer, hub)
    inner, shared = hub["moe_intermediate_size"], hub["num_shared_experts"]
    writer.add_expert_feed_forward_length(inner)
    writer.add_expert_shared_count(shared)
    writer.add_expert_shared_feed_forward_length(inner * shared)
    writer.add_expert_weights_scale(hub["routed_scaling_factor"])
    writer.add_expert_weights_norm(hub["norm_topk_prob"])
    writer.add_expert_gating_func(SIGMOID)
    writer.add_leading_dense_block_count(hub["mlp_layer_types"].index("sparse"))
    writer.add_nextn_predict_layers(0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def _nemotron(writer: gguf.GGUFWriter, hub: Hub) -> None:
    writer.add_vocab_size(hub["vocab_size"])
    writer.add_layer_norm_eps(hub["norm_eps"])
    writer.add_rope_dimension_count(_rotating(hub))
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def _ministral3(writer: gguf.GGUFWriter, hub: Hub) -> None:
    _llama(writer, hub)
    rope = hub["rope_parameters"]
    writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])


def _gpt_oss(writer: gguf.GGUFWriter, hub: Hub) -> None:
    writer.add_sliding_window(hub["sliding_window"])
    writer.add_expert_feed_forward_length(hub["intermediate_size"])


def _qwen_moe(writer: gguf.GGUFWriter, hub: Hub) -> None:
    writer.add_expert_feed_forward_length(hub["moe_intermediate_size"])
    if hub.get("shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(hub["shared_expert_intermediate_size"])


def _delta(writer: gguf.GGUFWriter, hub: Hub) -> None:
    if hub.get("moe_intermediate_size"):
        _qwen_moe(writer, hub)
    values = hub["linear_num_value_heads"]
    writer.add_ssm_conv_kernel(hub["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(hub["linear_key_head_dim"])
    writer.add_ssm_group_count(hub["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(values)
    writer.add_ssm_inner_size(hub["linear_value_head_dim"] * values)
    writer.add_full_attention_interval(hub.get("full_attention_interval", 4))
    _partial(writer, hub)
    if "qwen3_5" in hub["model_type"]:
        writer.add_rope_dimension_sections([11, 11, 10, 0])


def _routed(writer: gguf.GGUFWriter, hub: Hub) -> None:
    writer.add_expert_feed_forward_length(hub["moe_intermediate_size"])
    writer.add_expert_shared_count(hub["n_shared_experts"])
    kinds = hub.get("mlp_layer_types", ["sparse"])
    dense = hub.get("first_k_dense_replace", kinds.index("sparse"))
    writer.add_leading_dense_block_count(dense)
    writer.add_expert_weights_scale(hub["routed_scaling_factor"])
    if hub.get("norm_topk_prob"):
        writer.add_expert_weights_norm(hub["norm_topk_prob"])


def _glm4_moe(writer: gguf.GGUFWriter, hub: Hub) -> None:
    _routed(writer, hub)
    _partial(writer, hub)
    writer.add_expert_gating_func(SIGMOID)


def _dots1(writer: gguf.GGUFWriter, hub: Hub) -> None:
    _routed(writer, hub)
    writer.add_expert_gating_func(SIGMOID)


def _deepseek(writer: gguf.GGUFWriter, hub: Hub) -> None:
    writer.add_vocab_size(hub["vocab_size"])
    writer.add_head_count_kv(1)
    _routed(writer, hub)
    rank, rotating = hub["kv_lora_rank"], hub["qk_rope_head_dim"]
    if hub.get("q_lora_rank") is not None:
        writer.add_q_lora_rank(hub["q_lora_rank"])
    writer.add_kv_lora_rank(rank)
    writer.add_key_length(rank + rotating)
    writer.add_value_length(rank)
    writer.add_key_length_mla(hub["qk_nope_head_dim"] + rotating)
    writer.add_value_length_mla(hub["v_head_dim"])
    writer.add_rope_dimension_count(rotating)
    second = hub["model_type"] == "deepseek_v2"
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX if second else SIGMOID)
    if (weight := hub["rope_parameters"].get("mscale_all_dim")) is not None:
        writer.add_rope_scaling_yarn_log_mul(0.1 * weight)


def _minimax(writer: gguf.GGUFWriter, hub: Hub) -> None:
    writer.add_expert_feed_forward_length(hub["intermediate_size"])
    writer.add_expert_gating_func(SIGMOID)
    _partial(writer, hub)


def _ernie_moe(writer: gguf.GGUFWriter, hub: Hub) -> None:
    writer.add_expert_count(hub["moe_num_experts"])
    writer.add_expert_used_count(hub["moe_k"])
    writer.add_interleave_moe_layer_step(hub["moe_layer_interval"])
    writer.add_leading_dense_block_count(hub["moe_layer_start_index"])
    writer.add_expert_feed_forward_length(hub["moe_intermediate_size"])
    writer.add_expert_shared_count(hub["moe_num_shared_experts"])
    keys = hub["num_key_value_heads"]
    writer.add_expert_shared_feed_forward_length(hub["intermediate_size"] // keys)


def _afmoe(writer: gguf.GGUFWriter, hub: Hub) -> None:
    _llama(writer, hub)
    writer.add_expert_shared_count(hub["num_shared_experts"])
    writer.add_expert_feed_forward_length(hub["moe_intermediate_size"])
    writer.add_leading_dense_block_count(hub["num_dense_layers"])
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(hub["route_scale"])
    writer.add_expert_gating_func(SIGMOID)
    writer.add_sliding_window(hub["sliding_window"])


def _hunyuan(writer: gguf.GGUFWriter, hub: Hub) -> None:
    if hub["model_type"] == "hunyuan_v1_moe":
        writer.add_expert_shared_feed_forward_length(hub["intermediate_size"])
        writer.add_expert_feed_forward_length(hub["intermediate_size"])
        writer.add_expert_used_count(hub["moe_topk"])
        writer.add_expert_shared_count(1)
    rope = hub["rope_parameters"]
    size = _head_size(hub)
    theta = rope.get("rope_theta", 10000.0)
    writer.add_rope_freq_base(theta * rope["alpha"] ** (size / (size - 2)))
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    writer.add_rope_scaling_factor(1)
    writer.add_rope_scaling_orig_ctx_len(256 * 1024)
    writer.add_context_length(256 * 1024)


def _llama4(writer: gguf.GGUFWriter, hub: Hub) -> None:
    _llama(writer, hub)
    writer.add_interleave_moe_layer_step(hub["interleave_moe_layer_step"])
    writer.add_expert_feed_forward_length(hub["intermediate_size"])


def _mamba(writer: gguf.GGUFWriter, hub: Hub) -> None:
    writer.add_context_length(2**20)
    writer.add_embedding_length(hub["hidden_size"])
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(hub["num_hidden_layers"])
    writer.add_ssm_conv_kernel(hub["conv_kernel"])
    writer.add_ssm_inner_size(hub["expand"] * hub["hidden_size"])
    writer.add_ssm_state_size(hub["state_size"])
    writer.add_layer_norm_rms_eps(hub["layer_norm_epsilon"])
    if hub["model_type"] == "mamba2":
        writer.add_ssm_time_step_rank(hub["num_heads"])
        writer.add_ssm_group_count(hub["n_groups"])
    else:
        writer.add_ssm_time_step_rank(hub["time_step_rank"])
        writer.add_ssm_dt_b_c_rms(hub["model_type"] == "falcon_mamba")


def _falcon_h1(writer: gguf.GGUFWriter, hub: Hub) -> None:
    writer.add_vocab_size(hub["vocab_size"])
    _hybrid_states(writer, hub)
    writer.add_ssm_inner_size(hub["mamba_d_ssm"])
    if "head_dim" not in hub:
        writer.add_key_length(_head_size(hub))
        writer.add_value_length(_head_size(hub))


def _jamba(writer: gguf.GGUFWriter, hub: Hub) -> None:
    layers, heads = range(hub["num_hidden_layers"]), hub["num_key_value_heads"]
    period, offset = hub["attn_layer_period"], hub["attn_layer_offset"]
    writer.add_block_count(hub["num_hidden_layers"])
    writer.add_context_length(hub["max_position_embeddings"])
    writer.add_embedding_length(hub["hidden_size"])
    writer.add_feed_forward_length(hub["intermediate_size"])
    writer.add_head_count(hub["num_attention_heads"])
    writer.add_head_count_kv([heads if each % period == offset else 0 for each in layers])
    writer.add_ssm_conv_kernel(hub["mamba_d_conv"])
    writer.add_ssm_inner_size(hub["mamba_expand"] * hub["hidden_size"])
    writer.add_ssm_state_size(hub["mamba_d_state"])
    writer.add_ssm_time_step_rank(hub["mamba_dt_rank"])
    writer.add_layer_norm_rms_eps(hub["rms_norm_eps"])
    writer.add_expert_count(hub["num_experts"])
    writer.add_expert_used_count(hub["num_experts_per_tok"])


def _nemotron_h(writer: gguf.GGUFWriter, hub: Hub) -> None:
    kinds, heads = hub["layers_block_type"], hub["num_key_value_heads"]
    sparse = "moe" in kinds
    writer.add_block_count(len(kinds))
    writer.add_context_length(2**20)
    writer.add_vocab_size(hub["vocab_size"])
    writer.add_layer_norm_rms_eps(hub["layer_norm_epsilon"])
    writer.add_head_count_kv([heads if kind in _ATTENTION else 0 for kind in kinds])
    writer.add_rope_dimension_count(hub["head_dim"])
    writer.add_rope_scaling_finetuned(False)
    writer.add_ssm_conv_kernel(hub["conv_kernel"])
    writer.add_ssm_state_size(hub["ssm_state_size"])
    writer.add_ssm_group_count(hub["n_groups"])
    writer.add_ssm_time_step_rank(hub["mamba_num_heads"])
    writer.add_ssm_inner_size(hub["mamba_num_heads"] * hub["mamba_head_dim"])
    width = hub["moe_intermediate_size"] if sparse else hub["intermediate_size"]
    fed = "moe" if sparse else "mlp"
    writer.add_feed_forward_length([width if kind == fed else 0 for kind in kinds])
    if sparse:
        shared = hub["moe_shared_expert_intermediate_size"]
        writer.add_expert_feed_forward_length(width)
        writer.add_expert_shared_feed_forward_length(shared)
        writer.add_expert_shared_count(hub["n_shared_experts"])
        writer.add_expert_weights_norm(hub["norm_topk_prob"])
        writer.add_expert_weights_scale(hub["routed_scaling_factor"])


def _lfm2(writer: gguf.GGUFWriter, hub: Hub) -> None:
    kinds, heads = hub["layer_types"], hub["num_key_value_heads"]
    writer.add_head_count_kv([heads if kind == "full_attention" else 0 for kind in kinds])
    writer.add_vocab_size(hub["vocab_size"])
    writer.add_shortconv_l_cache(hub["conv_L_cache"])
    writer.add_layer_norm_rms_eps(hub["norm_eps"])
    if hub["model_type"] == "lfm2_moe":
        writer.add_expert_feed_forward_length(hub["moe_intermediate_size"])
        writer.add_leading_dense_block_count(hub["num_dense_layers"])
        writer.add_expert_gating_func(SIGMOID)
        return
    width, multiple = int(2 * hub["intermediate_size"] / 3), hub["block_multiple_of"]
    width = int(hub["block_ffn_dim_multiplier"] * width)
    writer.add_feed_forward_length(multiple * -(-width // multiple))


_ALONE = frozenset(
    {
        *("falcon", "gpt2", "gpt_bigcode", "bloom", "gpt_neox", "mpt", "jamba"),
        *("mamba", "falcon_mamba", "mamba2"),
    }
)
_OWN: Mapping[str, Add] = {
    **dict.fromkeys(("llama", "mixtral", "smollm3", "arcee", "apertus", "mistral"), _llama),
    **dict.fromkeys(("granite", "granitemoe", "granitemoeshared"), _granite),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), _gemma),
    **dict.fromkeys(("phi3", "phimoe"), _phi3),
    **dict.fromkeys(("gpt2", "gpt_bigcode"), _gpt2),
    **dict.fromkeys(("cohere", "cohere2"), _cohere),
    **dict.fromkeys(("olmo3", "exaone4"), _windows),
    **dict.fromkeys(("exaone", "glm4", "jais2"), _partial),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe"), _qwen_moe),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _delta),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"), _deepseek),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe"), _hunyuan),
    **dict.fromkeys(("mamba", "falcon_mamba", "mamba2"), _mamba),
    **dict.fromkeys(("lfm2", "lfm2_moe"), _lfm2),
    "afmoe": _afmoe,
    "bloom": _bloom,
    "dots1": _dots1,
    "ernie4_5_moe": _ernie_moe,
    "exaone_moe": _exaone_moe,
    "falcon": _falcon,
    "falcon_h1": _falcon_h1,
    "gemma3n_text": _gemma3n,
    "gemma4_text": _gemma4,
    **dict.fromkeys(("glm4_moe", "solar_open"), _glm4_moe),
    "gpt_neox": _neox,
    "gpt_oss": _gpt_oss,
    "granitemoehybrid": _granite_hybrid,
    "jamba": _jamba,
    "llama4_text": _llama4,
    "minimax_m2": _minimax,
    "ministral3": _ministral3,
    "mpt": _mpt,
    "nemotron": _nemotron,
    "nemotron_h": _nemotron_h,
    "olmo": _olmo,
    "phi": _phi2,
    "stablelm": _stablelm,
}
