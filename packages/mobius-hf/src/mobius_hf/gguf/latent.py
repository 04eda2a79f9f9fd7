"""`deepseek2` of GGUF files: latent attention, for DeepSeek V2 and V3 and what is built like them.

Source: llama.cpp, `convert_hf_to_gguf.py` and `src/llama-model.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mobius_hf.gguf.family import Facts, GgufFamily, Joined
from mobius_hf.gguf.parts import CORRECTED, DEEPSEEK_EXPERTS, SIGMOID, SOFTMAX
from mobius_hf.gguf.restore import EXPERTS
from mobius_ir_rules.lazy import Concat, Expression, Reshape, Transpose

# Groups of experts that a model chooses among, by the number of its experts: files from before
# there was a key do not say it. Source: config.json of DeepSeek-V2 and of DeepSeek-V3.
_GROUPS = {160: (8, 3), 256: (8, 4)}
_LATENT = frozenset({"attention.key_length_mla", "attention.value_length_mla"})


def _groups(facts: Facts) -> Mapping[str, Any]:
    experts = facts.values.get("expert_count")
    if "expert_group_count" in facts.values or experts is None:
        return {}
    groups, kept = _GROUPS.get(experts, (1, 1))
    return {"n_group": groups, "topk_group": kept}


def _latent(facts: Facts) -> Mapping[str, Any]:
    """Return the widths of latent attention, and its rotary scaling.

    Files of today have keys and values of one head that all queries share; those from before have
    each head's own, under the same keys.
    """
    values = facts.values
    rotating = values["rope.dimension_count"]
    key = values.get("attention.key_length_mla", values["attention.key_length"])
    value = values.get("attention.value_length_mla", values["attention.value_length"])
    scaling = dict(facts.rope_scaling or {})
    weight = values.get("rope.scaling.yarn_log_multiplier")
    if weight is not None and scaling:
        # A tenth of `mscale_all_dim`, which `mscale` equals where llama.cpp is right.
        scaling |= {"mscale": weight / 0.1, "mscale_all_dim": weight / 0.1}
    return {
        "num_key_value_heads": values["attention.head_count"],
        "q_lora_rank": values.get("attention.q_lora_rank"),
        "qk_rope_head_dim": rotating,
        "qk_nope_head_dim": key - rotating,
        "v_head_dim": value,
        "rope_theta": facts.theta,
        **({"rope_scaling": scaling} if scaling else {}),
    }


def _deepseek3(facts: Facts) -> Mapping[str, Any]:
    return {**_latent(facts), **_groups(facts)}


def _deepseek2(facts: Facts) -> Mapping[str, Any]:
    groups = {
        "n_group": facts.values.get("expert_group_count"),
        "topk_group": facts.values.get("expert_group_used_count"),
        **_groups(facts),
    }
    limited = (groups["n_group"] or 1) > 1
    method = "group_limited_greedy" if limited else "greedy"
    return {**_latent(facts), **groups, "topk_method": method}


def _keys_and_values(parts: tuple[Expression, ...]) -> Expression:
    """Return `[heads * (key + value), rank]` of keys `[heads, rank, key]` and values."""
    keys, values = parts
    joined = Concat((Transpose(keys, (0, 2, 1)), values), 1)
    heads, rows, rank = joined.shape
    return Reshape(joined, (heads * rows, rank))


_DEEPSEEK_LAYER = {
    **CORRECTED,
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
}
_DEEPSEEK_FIELDS = {
    **{key: name for key, name in DEEPSEEK_EXPERTS.items() if key != "attention.head_count_kv"},
    "attention.kv_lora_rank": "kv_lora_rank",
}
_DEEPSEEK: Mapping[str, Any] = {
    "fields": _DEEPSEEK_FIELDS,
    "derived": _LATENT | {"attention.q_lora_rank", "rope.scaling.yarn_log_multiplier"},
    "aside": frozenset({"attention.head_count_kv"}),
    "layer": _DEEPSEEK_LAYER,
    "joined": {
        **EXPERTS,
        "self_attn.kv_b_proj.weight": Joined(
            ("attn_k_b.weight", "attn_v_b.weight"), _keys_and_values
        ),
    },
    "heads": "own",
    "rotary": False,
}

LATENT: Mapping[str, GgufFamily] = {
    "deepseek2": GgufFamily(
        model_type="deepseek_v2",
        derive=_deepseek2,
        fixed={"expert_gating_func": SOFTMAX},
        **_DEEPSEEK,
    ),
}
"""By `general.architecture`."""

DEEPSEEK3 = GgufFamily(
    model_type="deepseek_v3",
    derive=_deepseek3,
    fixed={"expert_gating_func": SIGMOID},
    **_DEEPSEEK,
)
"""`deepseek2` whose experts are chosen by a sigmoid."""
