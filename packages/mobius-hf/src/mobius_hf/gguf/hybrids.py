"""Architectures of GGUF files that have attention and Mamba, in turns or side by side.

Source: llama.cpp, `convert_hf_to_gguf.py` (what is written) and `src/llama-model.cpp` (what its
graphs take for granted because it is not written).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mobius_hf.errors import CheckpointConfigError
from mobius_hf.gguf.dense import GRANITE
from mobius_hf.gguf.experts import GRANITE_SHARED
from mobius_hf.gguf.family import Facts, GgufFamily, Joined
from mobius_hf.gguf.parts import BASE, LAYER, LAYER_EPS, RMS, RMS_EPS, SIGMOID, TOP
from mobius_hf.gguf.recurrent import (
    BACKBONE,
    KEY_HEADS,
    RESTORED_MAMBA,
    RESTORED_MAMBA2,
    STATES,
    attending,
    expansion,
    mixer_names,
)
from mobius_hf.gguf.restore import EXPERTS, PERMUTED, rows_joined

_HYBRID_FIELDS = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
}
_HYBRID_BIASES = {"mamba_conv_bias": "ssm_conv1d.bias", "mamba_proj_bias": "ssm_in.bias"}


def _falcon_h1(facts: Facts) -> Mapping[str, Any]:
    """Return the sizes; weights have their factors in them, so that no factor is left."""
    if "output.weight" not in facts.tensors:
        raise CheckpointConfigError(
            "A file of the architecture falcon-h1 without output.weight lacks the factor between "
            "embedding table and head. Use the model's safetensors instead."
        )
    inner, heads = facts.values["ssm.inner_size"], facts.values["ssm.time_step_rank"]
    return {"mamba_d_ssm": inner, "mamba_d_head": inner // heads}


def _granite_hybrid(facts: Facts) -> Mapping[str, Any]:
    inner, heads = facts.values["ssm.inner_size"], facts.values["ssm.time_step_rank"]
    width = facts.values.get("expert_shared_feed_forward_length")
    if not facts.values.get("expert_count"):
        width = facts.shape("ffn_up.weight")[0]
    return {
        "layer_types": ["attention" if each else "mamba" for each in attending(facts)],
        "num_key_value_heads": facts.largest(KEY_HEADS),
        "mamba_expand": expansion(facts),
        "mamba_d_head": inner // heads,
        "shared_intermediate_size": width,
        "num_local_experts": facts.values.get("expert_count", 0),
        "num_experts_per_tok": facts.values.get("expert_used_count", 0),
    }


def _jamba(facts: Facts) -> Mapping[str, Any]:
    sparse = facts.layers_with("ffn_gate_inp.weight")
    return {
        **_turns("attn_layer", attending(facts)),
        **(_turns("expert_layer", sparse) if any(sparse) else {"num_experts": 1}),
        "num_key_value_heads": facts.largest(KEY_HEADS),
        "mamba_expand": expansion(facts),
    }


def _turns(name: str, layers: Sequence[bool]) -> Mapping[str, int]:
    """Return period and offset of the layers that have something.

    Raises:
        CheckpointConfigError: if none has, or they do not come at regular distances.
    """
    found = [index for index, each in enumerate(layers) if each]
    period = found[1] - found[0] if len(found) > 1 else len(layers)
    if not found or found != list(range(found[0], len(layers), period)) or found[0] >= period:
        raise CheckpointConfigError(
            f"{name} is of layers {found} of {len(layers)}; needed: one in every so many layers."
        )
    return {f"{name}_period": period, f"{name}_offset": found[0]}


def _nemotron_h(facts: Facts) -> Mapping[str, Any]:
    """Return the kind of each layer: what it is fed says it."""
    widths = facts.values["feed_forward_length"][: facts.layers]
    sparse = facts.layers_with("ffn_gate_inp.weight")
    kinds = [
        "attention" if attends else ("moe" if routed else "mlp") if width else "mamba"
        for attends, width, routed in zip(attending(facts), widths, sparse, strict=True)
    ]
    inner, count = facts.values["ssm.inner_size"], facts.values["ssm.time_step_rank"]
    return {
        "layers_block_type": kinds,
        "num_key_value_heads": facts.largest(KEY_HEADS),
        "mamba_num_heads": count,
        "mamba_head_dim": inner // count,
        "intermediate_size": facts.largest("feed_forward_length"),
    }


_NEMOTRON_FIELDS = {
    **{key: name for key, name in BASE.items() if key not in ("feed_forward_length", KEY_HEADS)},
    RMS_EPS: "layer_norm_epsilon",
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "ssm_state_size",
    "ssm.group_count": "n_groups",
}
_NEMOTRON_LAYER = {
    "attn_norm": "norm",
    "attn_q": "mixer.q_proj",
    "attn_k": "mixer.k_proj",
    "attn_v": "mixer.v_proj",
    "attn_output": "mixer.o_proj",
    "ffn_up": "mixer.up_proj",
    "ffn_down": "mixer.down_proj",
    **mixer_names("mixer", second=True),
}
_NEMOTRON_BIASES = {"use_bias": "ssm_in.bias", "use_conv_bias": "ssm_conv1d.bias"}
_NEMOTRON: Mapping[str, Any] = {
    "derive": _nemotron_h,
    "derived": STATES | {KEY_HEADS, "feed_forward_length"},
    "aside": frozenset({LAYER_EPS}),
    "prefix": "backbone.layers",
    "top": BACKBONE,
    "restored": RESTORED_MAMBA2,
    "rotary": False,
}
_GRANITE_HYBRID: Mapping[str, Any] = {
    "model_type": "granitemoehybrid",
    "fields": {
        **{key: name for key, name in GRANITE.items() if key != KEY_HEADS},
        **_HYBRID_FIELDS,
    },
    "flags": {**_HYBRID_BIASES, "attention_bias": "attn_q.bias"},
    "says": {"position_embedding_type": "nope"},
    "derive": _granite_hybrid,
    "derived": frozenset(
        {
            *(KEY_HEADS, "ssm.inner_size", "expert_count", "expert_used_count"),
            "expert_shared_feed_forward_length",
        }
    ),
    # Otherwise it is a Bamba, whose queries llama.cpp permutes as if whole heads rotated.
    "fixed": {"rope.scaling.finetuned": False},
    "restored": {**PERMUTED, **RESTORED_MAMBA2},
    "heads": "implied",
    "rotary": False,
}

HYBRIDS: Mapping[str, GgufFamily] = {
    "falcon-h1": GgufFamily(
        model_type="falcon_h1",
        fields={**RMS, **_HYBRID_FIELDS},
        flags={
            **_HYBRID_BIASES,
            "attention_bias": "attn_q.bias",
            "mlp_bias": "ffn_up.bias",
            "projectors_bias": "ssm_out.bias",
            "mamba_rms_norm": "ssm_norm.weight",
        },
        says={
            "mamba_norm_before_gate": False,
            "mlp_multipliers": [1.0, 1.0],
            "ssm_multipliers": [1.0] * 5,
            **dict.fromkeys(
                (
                    *("lm_head_multiplier", "embedding_multiplier", "key_multiplier"),
                    *("attention_in_multiplier", "attention_out_multiplier"),
                    *("ssm_in_multiplier", "ssm_out_multiplier"),
                ),
                1.0,
            ),
        },
        derive=_falcon_h1,
        derived=frozenset({"ssm.inner_size"}),
        layer={
            **LAYER,
            **mixer_names("mamba", second=True),
            # llama.cpp has forgotten its suffix.
            "ffn_norm": "pre_ff_layernorm.weight",
            "ffn_norm.weight": "pre_ff_layernorm.weight",
            "ffn_gate": "feed_forward.gate_proj",
            "ffn_up": "feed_forward.up_proj",
            "ffn_down": "feed_forward.down_proj",
        },
        top={**TOP, "output_norm": "model.final_layernorm"},
        restored=RESTORED_MAMBA2,
    ),
    "granitehybrid": GgufFamily(
        layer={**GRANITE_SHARED.layer, **mixer_names("mamba", second=True)},
        joined=GRANITE_SHARED.joined,
        **_GRANITE_HYBRID,
    ),
    "jamba": GgufFamily(
        model_type="jamba",
        fields={
            **{key: name for key, name in RMS.items() if key != KEY_HEADS},
            "ssm.conv_kernel": "mamba_d_conv",
            "ssm.state_size": "mamba_d_state",
            "ssm.time_step_rank": "mamba_dt_rank",
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
        },
        flags=_HYBRID_BIASES,
        derive=_jamba,
        derived=frozenset({KEY_HEADS, "ssm.inner_size"}),
        layer={
            **LAYER,
            **mixer_names("mamba", second=False),
            "ssm_dt_norm": "mamba.dt_layernorm",
            "ssm_b_norm": "mamba.b_layernorm",
            "ssm_c_norm": "mamba.c_layernorm",
            "ffn_norm": "pre_ff_layernorm",
            "ffn_gate": "feed_forward.gate_proj",
            "ffn_up": "feed_forward.up_proj",
            "ffn_down": "feed_forward.down_proj",
            "ffn_gate_inp": "feed_forward.router",
        },
        top={**TOP, "output_norm": "model.final_layernorm"},
        restored=RESTORED_MAMBA,
        joined={
            f"feed_forward.experts.{name.rpartition('.')[2]}": joined
            for name, joined in EXPERTS.items()
        },
        heads="implied",
        rotary=False,
    ),
    "nemotron_h": GgufFamily(
        model_type="nemotron_h",
        fields=_NEMOTRON_FIELDS,
        flags={**_NEMOTRON_BIASES, "mlp_bias": "ffn_up.bias"},
        layer=_NEMOTRON_LAYER,
        **_NEMOTRON,
    ),
    "nemotron_h_moe": GgufFamily(
        model_type="nemotron_h",
        fields={
            **_NEMOTRON_FIELDS,
            "expert_count": "n_routed_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
            "expert_shared_count": "n_shared_experts",
            "expert_weights_norm": "norm_topk_prob",
            "expert_weights_scale": "routed_scaling_factor",
            "expert_group_count": "n_group",
            "expert_group_used_count": "topk_group",
            "moe_latent_size": "moe_latent_size",
        },
        flags={**_NEMOTRON_BIASES, "mlp_bias": "ffn_up_shexp.bias"},
        fixed={"expert_gating_func": SIGMOID},
        layer={
            **_NEMOTRON_LAYER,
            "ffn_gate_inp": "mixer.gate",
            "exp_probs_b.bias": "mixer.gate.e_score_correction_bias",
            "ffn_up_exps.weight": "mixer.experts.up_proj",
            "ffn_down_exps.weight": "mixer.experts.down_proj",
            "ffn_up_shexp": "mixer.shared_experts.up_proj",
            "ffn_down_shexp": "mixer.shared_experts.down_proj",
            "ffn_latent_down": "mixer.fc1_latent_proj",
            "ffn_latent_up": "mixer.fc2_latent_proj",
        },
        **_NEMOTRON,
    ),
}
"""By `general.architecture`."""

GRANITE_HYBRID_DENSE = GgufFamily(
    layer={**LAYER, **mixer_names("mamba", second=True), "ffn_down": "shared_mlp.output_linear"},
    joined={
        "shared_mlp.input_linear.weight": Joined(("ffn_gate.weight", "ffn_up.weight"), rows_joined)
    },
    **_GRANITE_HYBRID,
)
"""`granitehybrid` without experts."""
