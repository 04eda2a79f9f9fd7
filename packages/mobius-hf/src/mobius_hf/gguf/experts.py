"""Architectures of GGUF files with attention in every layer, and experts.

Source: llama.cpp, `convert_hf_to_gguf.py` (what is written) and `src/llama-model.cpp` (what its
graphs take for granted because it is not written).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mobius_hf.errors import CheckpointConfigError
from mobius_hf.gguf.dense import GRANITE, STATE_SPACE
from mobius_hf.gguf.family import Facts, GgufFamily, Joined
from mobius_hf.gguf.parts import (
    BIASES,
    CORRECTED,
    DEEPSEEK_EXPERTS,
    LAYER,
    NORM_NAMED_FOR_ATTENTION,
    ROUTED,
    SIGMOID,
    SPARSE,
)
from mobius_hf.gguf.restore import EXPERTS, PERMUTED, as_row, rows_joined, transposed
from mobius_ir_rules.lazy import Concat, Expression, Reshape, Transpose

_QWEN_EXPERTS = {
    **SPARSE,
    "expert_count": "num_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
}
QWEN_SHARED_FIELDS: Mapping[str, str] = {
    **_QWEN_EXPERTS,
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
"""Qwen's experts, with one that every token goes through."""
QWEN_SHARED: Mapping[str, str] = {
    **ROUTED,
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
"""Names of the same."""


def _phimoe(facts: Facts) -> Mapping[str, Any]:
    if "rope_factors_long.weight" in facts.tensors:
        raise CheckpointConfigError(
            "Files of the architecture phimoe with LongRoPE lack the model's short_mscale and "
            "long_mscale, so its logits cannot be right. Use the model's safetensors instead."
        )
    return {"sliding_window": facts.values.get("attention.sliding_window") or None}


def _gpt_oss(facts: Facts) -> Mapping[str, Any]:
    kinds = [
        "full_attention" if layer % 2 else "sliding_attention" for layer in range(facts.layers)
    ]
    scaling = facts.rope_scaling
    if scaling is None:
        return {"layer_types": kinds}
    # As all models of this family have it.
    return {"layer_types": kinds, "rope_scaling": {**scaling, "truncate": False}}


def _llama4(facts: Facts) -> Mapping[str, Any]:
    """Return what llama.cpp has fixed; the largest model is the one without norms of heads."""
    return {"use_qk_norm": facts.values["expert_count"] != 128}


def _glm4(facts: Facts) -> Mapping[str, Any]:
    """Return the width of dense layers where a file says none, for it has no such layers."""
    if "feed_forward_length" in facts.values:
        return {}
    return {"intermediate_size": facts.values["expert_feed_forward_length"]}


def _hunyuan(facts: Facts) -> Mapping[str, Any]:
    inner = facts.values["expert_feed_forward_length"]
    found = facts.values["feed_forward_length"], facts.values.get("expert_shared_count", 1)
    if found != (inner, 1):
        raise CheckpointConfigError(
            f"feed_forward_length and expert_shared_count are {found}; needed: one shared expert "
            f"of the others' width, {(inner, 1)}."
        )
    return {}


def _in_turns(parts: tuple[Expression, ...]) -> Expression:
    """Return a row of the first, one of the second, and so on, of `[experts, rows, ...]`."""
    experts, rows, *rest = parts[0].shape
    apart = tuple(Reshape(part, (experts, rows, 1, *rest)) for part in parts)
    return Reshape(Concat(apart, 2), (experts, 2 * rows, *rest))


def _weights_in_turns(parts: tuple[Expression, ...]) -> Expression:
    """Return the same of matrices, as `[experts, in, out]`."""
    return Transpose(_in_turns(parts), (0, 2, 1))


def _input_first(parts: tuple[Expression, ...]) -> Expression:
    """Return gates and partners as `[experts, in, 2 * rows]`."""
    return Transpose(rows_joined(parts), (0, 2, 1))


SPARSE_FAMILIES: Mapping[str, GgufFamily] = {
    "qwen2moe": GgufFamily(
        model_type="qwen2_moe",
        fields=QWEN_SHARED_FIELDS,
        says={"norm_topk_prob": False},
        layer=QWEN_SHARED,
        restored={"ffn_gate_inp_shexp": as_row},
        joined=EXPERTS,
        heads="implied",
    ),
    "qwen3moe": GgufFamily(
        model_type="qwen3_moe",
        fields=_QWEN_EXPERTS,
        flags=BIASES,
        says={"norm_topk_prob": True},
        layer=ROUTED,
        joined=EXPERTS,
    ),
    "olmoe": GgufFamily(
        model_type="olmoe",
        fields={**SPARSE, "expert_count": "num_experts"},
        flags=BIASES,
        says={"norm_topk_prob": False},
        layer=ROUTED,
        joined=EXPERTS,
        heads="implied",
    ),
    "phimoe": GgufFamily(
        model_type="phimoe",
        fields={**SPARSE, "expert_count": "num_local_experts"},
        flags=BIASES,
        says={"lm_head_bias": True},
        derive=_phimoe,
        derived=frozenset({"attention.sliding_window"}),
        layer={**ROUTED, "ffn_gate_inp": "mlp.router"},
        joined=EXPERTS,
        heads="implied",
    ),
    "gpt-oss": GgufFamily(
        model_type="gpt_oss",
        fields={
            **SPARSE,
            "expert_count": "num_local_experts",
            "attention.sliding_window": "sliding_window",
        },
        flags=BIASES,
        derive=_gpt_oss,
        aside=frozenset({"expert_feed_forward_length"}),
        layer={
            **NORM_NAMED_FOR_ATTENTION,
            "attn_sinks.weight": "self_attn.sinks",
            "ffn_gate_inp": "mlp.router",
            "ffn_down_exps.weight": "mlp.experts.down_proj",
            "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
        },
        restored={"ffn_down_exps.weight": transposed},
        joined={
            "mlp.experts.gate_up_proj": Joined(
                ("ffn_gate_exps.weight", "ffn_up_exps.weight"), _weights_in_turns
            ),
            "mlp.experts.gate_up_proj_bias": Joined(
                ("ffn_gate_exps.bias", "ffn_up_exps.bias"), _in_turns
            ),
        },
    ),
    "ernie4_5-moe": GgufFamily(
        model_type="ernie4_5_moe",
        fields={
            **{key: name for key, name in SPARSE.items() if key != "expert_used_count"},
            "expert_used_count": "moe_k",
            "expert_count": "moe_num_experts",
            "expert_shared_count": "moe_num_shared_experts",
            "expert_feed_forward_length": "moe_intermediate_size",
            "leading_dense_block_count": "moe_layer_start_index",
            "interleave_moe_layer_step": "moe_layer_interval",
        },
        flags={"use_bias": "attn_q.bias"},
        # The widths of the tensors say it.
        aside=frozenset({"expert_shared_feed_forward_length"}),
        layer={**CORRECTED, "exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"},
        restored={"exp_probs_b.bias": as_row},
        joined=EXPERTS,
    ),
    "hunyuan-moe": GgufFamily(
        model_type="hunyuan_v1_moe",
        fields={
            **{key: name for key, name in SPARSE.items() if key != "expert_used_count"},
            "expert_used_count": "moe_topk",
            "expert_count": "num_experts",
        },
        flags=BIASES,
        derive=_hunyuan,
        derived=frozenset({"expert_feed_forward_length", "expert_shared_count"}),
        aside=frozenset({"expert_shared_feed_forward_length"}),
        layer={
            **ROUTED,
            "attn_q_norm": "self_attn.query_layernorm",
            "attn_k_norm": "self_attn.key_layernorm",
            "ffn_gate_inp": "mlp.gate.wg",
            "ffn_gate_shexp": "mlp.shared_mlp.gate_proj",
            "ffn_up_shexp": "mlp.shared_mlp.up_proj",
            "ffn_down_shexp": "mlp.shared_mlp.down_proj",
        },
        joined=EXPERTS,
    ),
    "glm4moe": GgufFamily(
        model_type="glm4_moe",
        fields=DEEPSEEK_EXPERTS,
        flags={**BIASES, "use_qk_norm": "attn_q_norm.weight"},
        derive=_glm4,
        fixed={"expert_gating_func": SIGMOID},
        layer={
            **{part: name for part, name in CORRECTED.items() if part != "ffn_norm"},
            "post_attention_norm": "post_attention_layernorm",
        },
        joined=EXPERTS,
        partial_rotary=True,
    ),
    "dots1": GgufFamily(
        model_type="dots1",
        fields=DEEPSEEK_EXPERTS,
        flags=BIASES,
        says={"sliding_window": None},
        fixed={"expert_gating_func": SIGMOID},
        layer=CORRECTED,
        joined=EXPERTS,
    ),
    "minimax-m2": GgufFamily(
        model_type="minimax_m2",
        fields={**SPARSE, "expert_count": "num_local_experts"},
        fixed={"expert_gating_func": SIGMOID},
        aside=frozenset({"expert_feed_forward_length"}),
        layer={
            **ROUTED,
            "ffn_gate_inp": "block_sparse_moe.gate",
            "exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias",
        },
        joined=EXPERTS,
        partial_rotary=True,
    ),
    "exaone-moe": GgufFamily(
        model_type="exaone_moe",
        fields={
            **DEEPSEEK_EXPERTS,
            "expert_count": "num_experts",
            "expert_shared_count": "num_shared_experts",
            "attention.sliding_window": "sliding_window",
        },
        derive=lambda facts: {"layer_types": facts.sliding_types(4)},
        derived=frozenset({"attention.sliding_window_pattern"}),
        fixed={"expert_gating_func": SIGMOID},
        aside=frozenset({"expert_shared_feed_forward_length"}),
        layer=CORRECTED,
        joined=EXPERTS,
    ),
    "afmoe": GgufFamily(
        model_type="afmoe",
        fields={
            **SPARSE,
            "expert_count": "num_experts",
            "expert_shared_count": "num_shared_experts",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_weights_scale": "route_scale",
            "leading_dense_block_count": "num_dense_layers",
            "attention.sliding_window": "sliding_window",
        },
        says={"mup_enabled": True},
        derive=lambda facts: {"layer_types": facts.sliding_types(4)},
        fixed={"expert_gating_func": SIGMOID, "expert_weights_norm": True},
        aside=frozenset({"expert_group_count", "expert_group_used_count"}),
        layer={
            **CORRECTED,
            "attn_gate": "self_attn.gate_proj",
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_mlp_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
            "ffn_gate_inp": "mlp.router.gate",
            "exp_probs_b.bias": "mlp.expert_bias",
        },
        joined=EXPERTS,
    ),
    "granitemoe": GgufFamily(
        model_type="granitemoe",
        fields={
            **GRANITE,
            "expert_used_count": "num_experts_per_tok",
            "expert_count": "num_local_experts",
        },
        flags=BIASES,
        aside=STATE_SPACE,
        layer={**ROUTED, "ffn_gate_inp": "block_sparse_moe.router.layer"},
        restored=PERMUTED,
        joined={
            "block_sparse_moe.input_linear.weight": EXPERTS["mlp.experts.gate_up_proj"],
            "block_sparse_moe.output_linear.weight": EXPERTS["mlp.experts.down_proj"],
        },
        heads="implied",
    ),
    "llama4": GgufFamily(
        model_type="llama4_text",
        fields={
            **SPARSE,
            "feed_forward_length": "intermediate_size_mlp",
            "expert_count": "num_local_experts",
            "expert_feed_forward_length": "intermediate_size",
            "interleave_moe_layer_step": "interleave_moe_layer_step",
        },
        flags=BIASES,
        says={
            "attention_chunk_size": 8192,
            "attn_temperature_tuning": True,
            "floor_scale": 8192,
            "attn_scale": 0.1,
            "no_rope_layer_interval": 4,
        },
        derive=_llama4,
        layer={
            **LAYER,
            "ffn_gate": "feed_forward.gate_proj",
            "ffn_up": "feed_forward.up_proj",
            "ffn_down": "feed_forward.down_proj",
            "ffn_gate_inp": "feed_forward.router",
            "ffn_gate_shexp": "feed_forward.shared_expert.gate_proj",
            "ffn_up_shexp": "feed_forward.shared_expert.up_proj",
            "ffn_down_shexp": "feed_forward.shared_expert.down_proj",
            "ffn_down_exps.weight": "feed_forward.experts.down_proj",
        },
        restored={"ffn_down_exps.weight": transposed},
        joined={
            "feed_forward.experts.gate_up_proj": Joined(
                ("ffn_gate_exps.weight", "ffn_up_exps.weight"), _input_first
            ),
        },
    ),
}
"""By `general.architecture`."""

MIXTRAL = GgufFamily(
    model_type="mixtral",
    fields={**SPARSE, "expert_count": "num_local_experts"},
    layer=ROUTED,
    restored=PERMUTED,
    joined=EXPERTS,
)
"""`llama` with experts."""
GRANITE_SHARED = GgufFamily(
    model_type="granitemoeshared",
    fields={
        **SPARSE_FAMILIES["granitemoe"].fields,
        "expert_shared_feed_forward_length": "shared_intermediate_size",
    },
    flags=BIASES,
    aside=STATE_SPACE,
    layer={
        **SPARSE_FAMILIES["granitemoe"].layer,
        "ffn_down_shexp": "shared_mlp.output_linear",
    },
    restored=PERMUTED,
    joined={
        **SPARSE_FAMILIES["granitemoe"].joined,
        "shared_mlp.input_linear.weight": Joined(
            ("ffn_gate_shexp.weight", "ffn_up_shexp.weight"), rows_joined
        ),
    },
    heads="implied",
)
"""`granitemoe` with a shared expert."""
