"""Keys and names of tensors that families of GGUF files share -> those of HuggingFace."""

from __future__ import annotations

from collections.abc import Mapping

LAYER: Mapping[str, str] = {
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
"""Parts of a layer."""
TOP: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
"""What is in no layer."""
SANDWICH: Mapping[str, str] = {
    **LAYER,
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Norms before and after each half of a layer."""
POST_NORM: Mapping[str, str] = {
    **LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Norms after each half of a layer."""
NORM_NAMED_FOR_ATTENTION: Mapping[str, str] = {
    **{part: name for part, name in LAYER.items() if part != "ffn_norm"},
    "post_attention_norm": "post_attention_layernorm",
}
"""The second norm is called for what it follows, as HuggingFace calls it."""
ROUTED: Mapping[str, str] = {
    **LAYER,
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_up_exps.weight": "mlp.experts.gate_up_proj",
}
"""Experts."""
CORRECTED: Mapping[str, str] = {
    **ROUTED,
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
"""Experts as DeepSeek-V3 has them: a bias for the choice, and shared ones."""

BASE: Mapping[str, str] = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
}
"""Keys that nearly all files have."""
RMS_EPS, LAYER_EPS = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
"""Keys of the epsilon of either norm."""
RMS: Mapping[str, str] = {**BASE, RMS_EPS: "rms_norm_eps"}
"""The same, and the norms' epsilon."""
SPARSE: Mapping[str, str] = {**RMS, "expert_used_count": "num_experts_per_tok"}
"""The same, and how many experts a token has."""
DEEPSEEK_EXPERTS: Mapping[str, str] = {
    **SPARSE,
    "expert_count": "n_routed_experts",
    "expert_shared_count": "n_shared_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "leading_dense_block_count": "first_k_dense_replace",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
}
"""Experts as DeepSeek-V3 counts them."""
BIASES: Mapping[str, str] = {"attention_bias": "attn_q.bias"}
"""Flag -> the tensor that is there if it is set."""
ALL_BIASES: Mapping[str, str] = {**BIASES, "mlp_bias": "ffn_up.bias"}
"""The same, of feed-forward layers too."""
SOFTMAX, SIGMOID = 1, 2
"""`expert_gating_func`. Source: llama.cpp, `llama_expert_gating_func_type`."""
