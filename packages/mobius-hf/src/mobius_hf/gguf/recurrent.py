"""Architectures of GGUF files with states: Mamba in every layer, and short convolutions.

Source: llama.cpp, `convert_hf_to_gguf.py` (what is written) and `src/llama-model.cpp` (what its
graphs take for granted because it is not written).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mobius_hf.gguf.family import Facts, GgufFamily
from mobius_hf.gguf.parts import LAYER, LAYER_EPS, RMS, RMS_EPS, SIGMOID
from mobius_hf.gguf.restore import (
    EXPERTS,
    flat,
    log_of_negative,
    one_after_the_other,
    per_channel,
)

KEY_HEADS = "attention.head_count_kv"
"""A list, with 0 for layers that do not attend."""
STATES = frozenset({"ssm.inner_size", "ssm.time_step_rank"})
"""Keys that widths and numbers of heads follow from."""
RESTORED_MAMBA = {"ssm_conv1d.weight": per_channel, "ssm_a": log_of_negative}
"""What the converter changes in a Mamba."""
RESTORED_MAMBA2 = {
    "ssm_conv1d.weight": per_channel,
    "ssm_a": one_after_the_other(flat, log_of_negative),
    "ssm_d": flat,
    "ssm_norm.weight": flat,
}
"""The same in a Mamba 2."""


def mixer_names(mixer: str, *, second: bool) -> dict[str, str]:
    """Return the names of a Mamba's tensors, or a Mamba 2's, which are called `mixer`."""
    own = (
        {"ssm_dt.bias": f"{mixer}.dt_bias", "ssm_norm": f"{mixer}.norm"}
        if second
        else {"ssm_dt": f"{mixer}.dt_proj", "ssm_x": f"{mixer}.x_proj"}
    )
    return {
        "ssm_in": f"{mixer}.in_proj",
        "ssm_conv1d": f"{mixer}.conv1d",
        "ssm_a": f"{mixer}.A_log",
        "ssm_d": f"{mixer}.D",
        "ssm_out": f"{mixer}.out_proj",
        **own,
    }


BACKBONE = {
    "token_embd": "backbone.embeddings",
    "output_norm": "backbone.norm_f",
    "output": "lm_head",
}
"""What is in no layer."""
_MAMBA_FIELDS = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "state_size",
    RMS_EPS: "layer_norm_epsilon",
}
_MAMBA: Mapping[str, Any] = {
    "flags": {"use_bias": "ssm_in.bias", "use_conv_bias": "ssm_conv1d.bias"},
    # What attention would have, and a length that is not the model's.
    "aside": frozenset(
        {"context_length", "feed_forward_length", "attention.head_count", KEY_HEADS, LAYER_EPS}
    ),
    "prefix": "backbone.layers",
    "top": BACKBONE,
    "heads": "none",
    "rotary": False,
}


def attending(facts: Facts) -> list[bool]:
    """Return which layers attend: those that have heads for keys."""
    return [bool(heads) for heads in facts.values[KEY_HEADS][: facts.layers]]


def expansion(facts: Facts) -> float:
    """Return how much wider a state space is than the stream, an integer where it is one."""
    ratio = facts.values["ssm.inner_size"] / facts.values["embedding_length"]
    return int(ratio) if ratio == int(ratio) else ratio


def _mamba2(facts: Facts) -> Mapping[str, Any]:
    heads = facts.values["ssm.time_step_rank"]
    return {
        "expand": expansion(facts),
        "num_heads": heads,
        "head_dim": facts.values["ssm.inner_size"] // heads,
    }


def _lfm2(facts: Facts) -> Mapping[str, Any]:
    return {
        "layer_types": ["full_attention" if each else "conv" for each in attending(facts)],
        "num_key_value_heads": facts.largest(KEY_HEADS),
    }


_LFM2_LAYER = {
    **LAYER,
    "attn_norm": "operator_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_down": "feed_forward.w2",
    "ffn_up": "feed_forward.w3",
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
}
_LFM2_FIELDS = {
    **{key: name for key, name in RMS.items() if key != KEY_HEADS},
    RMS_EPS: "norm_eps",
    "shortconv.l_cache": "conv_L_cache",
}
_LFM2: Mapping[str, Any] = {
    "flags": {"conv_bias": "shortconv.conv.bias"},
    "derive": _lfm2,
    "derived": frozenset({KEY_HEADS}),
    # Its only norm outside of layers is the last one, whatever it is called.
    "top": {
        "token_embd": "model.embed_tokens",
        "token_embd_norm": "model.embedding_norm",
        "output": "lm_head",
    },
    "heads": "implied",
}
RECURRENT: Mapping[str, GgufFamily] = {
    "mamba": GgufFamily(
        model_type="mamba",
        fields={**_MAMBA_FIELDS, "ssm.time_step_rank": "time_step_rank"},
        derive=lambda facts: {"expand": expansion(facts)},
        derived=frozenset({"ssm.inner_size"}),
        fixed={"ssm.dt_b_c_rms": False},
        layer={"attn_norm": "norm", **mixer_names("mixer", second=False)},
        restored=RESTORED_MAMBA,
        **_MAMBA,
    ),
    "mamba2": GgufFamily(
        model_type="mamba2",
        fields={**_MAMBA_FIELDS, "ssm.group_count": "n_groups"},
        derive=_mamba2,
        derived=STATES,
        layer={"attn_norm": "norm", **mixer_names("mixer", second=True)},
        restored=RESTORED_MAMBA2,
        **_MAMBA,
    ),
    "lfm2": GgufFamily(
        model_type="lfm2",
        fields=_LFM2_FIELDS,
        says={"block_auto_adjust_ff_dim": False},
        layer=_LFM2_LAYER,
        restored={"shortconv.conv.weight": per_channel},
        **_LFM2,
    ),
    "lfm2moe": GgufFamily(
        model_type="lfm2_moe",
        fields={
            **_LFM2_FIELDS,
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
            "leading_dense_block_count": "num_dense_layers",
        },
        says={"use_expert_bias": True, "norm_topk_prob": True, "routed_scaling_factor": 1.0},
        fixed={"expert_gating_func": SIGMOID},
        layer={
            **_LFM2_LAYER,
            "ffn_gate_inp": "feed_forward.gate",
            "exp_probs_b.bias": "feed_forward.expert_bias",
        },
        restored={"shortconv.conv.weight": per_channel},
        joined={
            f"feed_forward.experts.{name.rpartition('.')[2]}": joined
            for name, joined in EXPERTS.items()
        },
        **_LFM2,
    ),
}
"""By `general.architecture`."""

FALCON_MAMBA = GgufFamily(
    model_type="falcon_mamba",
    fields={**_MAMBA_FIELDS, "ssm.time_step_rank": "time_step_rank"},
    derive=lambda facts: {"expand": expansion(facts)},
    derived=frozenset({"ssm.inner_size"}),
    fixed={"ssm.dt_b_c_rms": True},
    layer={"attn_norm": "norm", **mixer_names("mixer", second=False)},
    restored=RESTORED_MAMBA,
    **_MAMBA,
)
"""`mamba` with norms of the scan's parameters."""
