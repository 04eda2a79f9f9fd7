"""Gemma's architectures of GGUF files.

Source: llama.cpp, `convert_hf_to_gguf.py` and `src/llama-model.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import onnx_ir as ir

from mobius_hf.gguf.family import Derive, Facts, GgufFamily
from mobius_hf.gguf.parts import BIASES, RMS, SANDWICH, TOP
from mobius_hf.gguf.restore import less_one_of
from mobius_hf.transforms import leaf
from mobius_ir_rules.lazy import DerivedTensor, Reshape, Slice

_NORMS = less_one_of(
    *("attn_norm", "attn_q_norm", "attn_k_norm", "ffn_norm", "output_norm"),
    *("post_attention_norm", "post_ffw_norm"),
)
_SLIDING = {**RMS, "attention.sliding_window": "sliding_window"}
_CAP = {"final_logit_softcapping": "final_logit_softcapping"}
_LAYER_INPUT = {
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
_LAYER_INPUT_TOP = {
    **TOP,
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
_ALTUP = {
    "altup_proj.weight": "model.altup_projections",
    "altup_unembd_proj.weight": "model.altup_unembed_projections",
}
_PATTERN = frozenset({"rope.freq_base_swa", "attention.sliding_window_pattern"})


def _scale(layers: int) -> Derive:
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
    return {
        **_scale(62)(facts),
        "rope_local_base_freq": facts.values.get("rope.freq_base_swa", 10000.0),
        "layer_types": facts.sliding_types(6),
    }


def _two_ropes(facts: Facts, full: Mapping[str, Any]) -> Mapping[str, Any]:
    theta = facts.values.get("rope.freq_base_swa", 10000.0)
    return {
        "layer_types": facts.sliding_types(5),
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": theta},
            "full_attention": {"rope_theta": facts.theta, **full},
        },
    }


def _gemma3n(facts: Facts) -> Mapping[str, Any]:
    scales = facts.values["activation_sparsity_scale"]
    return {
        **_two_ropes(facts, {"rope_type": "default", **(facts.rope_scaling or {})}),
        "vocab_size_per_layer_input": _input_rows(facts),
        "laurel_rank": facts.shape("laurel_l.weight")[0],
        # A scale is the quantile of the normal distribution that a part of the gates is below.
        "activation_sparsity_pattern": [NormalDist().cdf(scale) for scale in scales],
    }


def _gemma4(facts: Facts) -> Mapping[str, Any]:
    """Return the two kinds of heads, widths and positions, and what is optional."""
    values = facts.values
    kinds = facts.sliding_types(6)
    heads = values["attention.head_count_kv"]
    heads = heads if isinstance(heads, list) else [heads] * facts.layers
    widths = values["feed_forward_length"]
    widths = widths if isinstance(widths, list) else [widths] * facts.layers
    first = {kind: kinds.index(kind) for kind in kinds}
    full = first.get("full_attention", 0)
    sliding = first.get("sliding_attention", full)
    has_values = facts.layers_with("attn_v.weight")
    # One of all frequencies that are to rotate, and a divisor that stops them of the others.
    divisors = facts.tensor("rope_freqs.weight").numpy().reshape(-1)
    rotating = {"rope_type": "proportional", "partial_rotary_factor": float((divisors == 1).mean())}
    shared = bool(values.get("embedding_length_per_layer_input"))
    return {
        **_two_ropes(facts, rotating),
        "layer_types": kinds,
        "head_dim": values["attention.key_length_swa"],
        "global_head_dim": values["attention.key_length"],
        "num_key_value_heads": heads[sliding],
        "attention_k_eq_v": not has_values[full],
        **({} if has_values[full] else {"num_global_key_value_heads": heads[full]}),
        "intermediate_size": widths[0],
        "use_double_wide_mlp": widths[-1] != widths[0],
        "enable_moe_block": bool(values.get("expert_count")),
        **({"vocab_size_per_layer_input": _input_rows(facts)} if shared else {}),
    }


def _input_rows(facts: Facts) -> int:
    return int(facts.tensor("per_layer_token_embd.weight").shape.numpy()[0])


def _altup(facts: Facts) -> Mapping[str, ir.TensorProtocol]:
    """Return the matrices of the further streams one by one."""
    made: dict[str, ir.TensorProtocol] = {}
    for name, ours in _ALTUP.items():
        tensor = facts.tensor(name)
        count, *shape = map(int, tensor.shape.numpy())
        for index in range(count):
            rows = Slice(leaf(tensor), (slice(index, index + 1), slice(None), slice(None)))
            own = f"{ours}.{index}.weight"
            made[own] = DerivedTensor(Reshape(rows, tuple(shape)), own)
    return made


GEMMA: Mapping[str, GgufFamily] = {
    "gemma": GgufFamily(model_type="gemma", flags=BIASES, restored=_NORMS),
    "gemma2": GgufFamily(
        model_type="gemma2",
        fields={**_SLIDING, **_CAP, "attn_logit_softcapping": "attn_logit_softcapping"},
        derive=_scale(46),
        layer=SANDWICH,
        restored=_NORMS,
    ),
    "gemma3": GgufFamily(
        model_type="gemma3_text",
        fields={**_SLIDING, **_CAP},
        flags=BIASES,
        derive=_gemma3,
        derived=_PATTERN,
        layer=SANDWICH,
        restored=_NORMS,
    ),
    "gemma3n": GgufFamily(
        model_type="gemma3n_text",
        fields={
            **_SLIDING,
            **_CAP,
            "altup.active_idx": "altup_active_idx",
            "altup.num_inputs": "altup_num_inputs",
            "embedding_length_per_layer_input": "hidden_size_per_layer_input",
            "attention.shared_kv_layers": "num_kv_shared_layers",
        },
        flags={"altup_correct_scale": "altup_correct_scale.weight"},
        derive=_gemma3n,
        derived=_PATTERN | {"activation_sparsity_scale"},
        layer={
            **SANDWICH,
            **_LAYER_INPUT,
            "altup_correct_coef": "altup.correction_coefs",
            "altup_correct_scale.weight": "altup.correct_output_scale",
            "altup_predict_coef": "altup.prediction_coefs",
            "altup_router": "altup.modality_router",
            "altup_router_norm": "altup.router_norm",
            "laurel_l": "laurel.linear_left",
            "laurel_r": "laurel.linear_right",
            "laurel_post_norm": "laurel.post_laurel_norm",
        },
        top=_LAYER_INPUT_TOP,
        made=_altup,
        used=frozenset(_ALTUP),
        rotary=False,
    ),
    "gemma4": GgufFamily(
        model_type="gemma4_text",
        fields={
            **{
                key: name
                for key, name in _SLIDING.items()
                if key not in ("feed_forward_length", "attention.head_count_kv")
            },
            **_CAP,
            "embedding_length_per_layer_input": "hidden_size_per_layer_input",
            "attention.shared_kv_layers": "num_kv_shared_layers",
            "expert_count": "num_experts",
            "expert_used_count": "top_k_experts",
            "expert_feed_forward_length": "moe_intermediate_size",
        },
        derive=_gemma4,
        derived=_PATTERN
        | {
            "attention.head_count_kv",
            "attention.key_length_swa",
            "attention.value_length_swa",
            "feed_forward_length",
            "rope.dimension_count_swa",
        },
        layer={
            **SANDWICH,
            **_LAYER_INPUT,
            "layer_output_scale.weight": "layer_scalar",
            "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
            "post_ffw_norm_1": "post_feedforward_layernorm_1",
            "post_ffw_norm_2": "post_feedforward_layernorm_2",
            "ffn_gate_inp": "router.proj",
            "ffn_gate_inp.scale": "router.scale",
            "ffn_down_exps.scale": "router.per_expert_scale",
            "ffn_gate_up_exps.weight": "experts.gate_up_proj",
            "ffn_down_exps.weight": "experts.down_proj",
        },
        top=_LAYER_INPUT_TOP,
        heads="own",
        rotary=False,
    ),
}
"""By `general.architecture`."""
