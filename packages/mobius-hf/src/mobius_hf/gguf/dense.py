"""Architectures of GGUF files with attention and one feed-forward layer in every layer.

Source: llama.cpp, `convert_hf_to_gguf.py` (what is written) and `src/llama-model.cpp` (what its
graphs take for granted because it is not written).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from mobius_hf.gguf.family import Facts, GgufFamily
from mobius_hf.gguf.parts import (
    ALL_BIASES,
    BASE,
    BIASES,
    LAYER,
    LAYER_EPS,
    NORM_NAMED_FOR_ATTENTION,
    POST_NORM,
    RMS,
    RMS_EPS,
    TOP,
)
from mobius_hf.gguf.restore import PERMUTED, less_one_of

GRANITE: Mapping[str, str] = {
    **RMS,
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
"""Granite's factors."""
_WINDOW = frozenset({"attention.sliding_window", "attention.sliding_window_pattern"})
_XIELU: Mapping[str, tuple[int, ...]] = {"alpha_n": (1,), "alpha_p": (1,), "beta": (), "eps": ()}
STATE_SPACE = frozenset(
    f"ssm.{key}"
    for key in ("conv_kernel", "state_size", "group_count", "inner_size", "time_step_rank")
)
"""Keys of a Mamba 2."""


def _phi3(facts: Facts) -> Mapping[str, Any]:
    # The fields of a checkpoint for 4096 tokens, where there is no second length.
    length = facts.values.get("rope.scaling.original_context_length")
    original = facts.values["context_length"] if length is None else length
    window = facts.values.get("attention.sliding_window") or None  # 0 in files of Phi 4
    return {"original_max_position_embeddings": original, "sliding_window": window}


def _olmo3(facts: Facts) -> Mapping[str, Any]:
    """Return the layers' types, and that only full ones have a rotary scaling."""
    sliding = facts.values.get("rope.freq_base_swa", facts.theta)
    return {
        "layer_types": facts.sliding_types(4),
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": sliding},
            "full_attention": {
                "rope_type": "default",
                "rope_theta": facts.theta,
                **(facts.rope_scaling or {}),
            },
        },
    }


def _exaone4(facts: Facts) -> Mapping[str, Any]:
    window = facts.values.get("attention.sliding_window") or None
    everywhere = ["full_attention"] * facts.layers
    return {
        "sliding_window": window,
        "layer_types": everywhere if window is None else facts.sliding_types(4),
    }


def _ministral3(facts: Facts) -> Mapping[str, Any]:
    weight = facts.values.get("rope.scaling.yarn_log_multiplier", 0.0)
    return {
        "rope_parameters": {
            "rope_theta": facts.theta,
            **(facts.rope_scaling or {}),
            "mscale": weight,
            "mscale_all_dim": weight,
            "llama_4_scaling_beta": facts.values["attention.temperature_scale"],
        }
    }


def _xielu(facts: Facts) -> Mapping[str, ir.TensorProtocol]:
    """Return the parameters of the activation, which are metadata."""
    return {
        f"model.layers.{layer}.mlp.act_fn.{name}": ir.tensor(np.full(shape, number, np.float32))
        for name, shape in _XIELU.items()
        for layer, number in enumerate(facts.values[f"xielu.{name}"])
    }


DENSE: Mapping[str, GgufFamily] = {
    "llama": GgufFamily(model_type="llama", flags=ALL_BIASES, restored=PERMUTED),
    "mistral3": GgufFamily(
        model_type="ministral3",
        derive=_ministral3,
        derived=frozenset({"attention.temperature_scale", "rope.scaling.yarn_log_multiplier"}),
        restored=PERMUTED,
        rotary=False,
    ),
    "qwen2": GgufFamily(model_type="qwen2", heads="implied"),
    "qwen3": GgufFamily(model_type="qwen3", flags=BIASES),
    "phi3": GgufFamily(
        model_type="phi3",
        says={"pad_token_id": None},
        derive=_phi3,
        derived=frozenset({"attention.sliding_window"}),
        layer={**LAYER, "ffn_up": "mlp.gate_up_proj"},
        heads="implied",
        partial_rotary=True,
    ),
    "phi2": GgufFamily(
        model_type="phi",
        fields={**BASE, LAYER_EPS: "layer_norm_eps"},
        layer={
            **LAYER,
            "attn_output": "self_attn.dense",
            "ffn_up": "mlp.fc1",
            "ffn_down": "mlp.fc2",
        },
        top={**TOP, "output_norm": "model.final_layernorm"},
        heads="implied",
        partial_rotary=True,
    ),
    "starcoder2": GgufFamily(
        model_type="starcoder2",
        fields={**BASE, LAYER_EPS: "norm_epsilon"},
        flags={"use_bias": "attn_q.bias"},
        layer={**LAYER, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        heads="implied",
    ),
    "granite": GgufFamily(
        model_type="granite",
        fields=GRANITE,
        flags=ALL_BIASES,
        # Of Granite 4, whose converter writes what its hybrids have.
        aside=STATE_SPACE | {"expert_shared_feed_forward_length"},
        restored=PERMUTED,
        heads="implied",
    ),
    "smollm3": GgufFamily(
        model_type="smollm3", flags=ALL_BIASES, restored=PERMUTED, heads="implied"
    ),
    "olmo": GgufFamily(
        model_type="olmo",
        fields={**BASE, "attention.clamp_kqv": "clip_qkv"},
        fixed={LAYER_EPS: 1e-5},
        restored=PERMUTED,
        heads="implied",
    ),
    "olmo2": GgufFamily(model_type="olmo2", flags=BIASES, layer=POST_NORM, heads="implied"),
    "stablelm": GgufFamily(
        model_type="stablelm",
        fields={
            **BASE,
            LAYER_EPS: "layer_norm_eps",
            "use_parallel_residual": "use_parallel_residual",
        },
        flags={"use_qkv_bias": "attn_q.bias"},
        heads="implied",
        partial_rotary=True,
    ),
    "command-r": GgufFamily(
        model_type="cohere",
        fields={**BASE, LAYER_EPS: "layer_norm_eps", "logit_scale": "logit_scale"},
        flags={"use_qk_norm": "attn_q_norm.weight"},
        heads="implied",
    ),
    "cohere2": GgufFamily(
        model_type="cohere2",
        fields={
            **BASE,
            LAYER_EPS: "layer_norm_eps",
            "attention.sliding_window": "sliding_window",
            "logit_scale": "logit_scale",
        },
    ),
    "nemotron": GgufFamily(
        model_type="nemotron",
        fields={**BASE, LAYER_EPS: "norm_eps"},
        flags=ALL_BIASES,
        aside=frozenset({RMS_EPS}),
        restored=less_one_of("attn_norm", "ffn_norm", "output_norm"),
        partial_rotary=True,
    ),
    "exaone": GgufFamily(
        model_type="exaone",
        fields={**RMS, LAYER_EPS: "rms_norm_eps"},
        layer={
            "attn_norm": "ln_1",
            "attn_q": "attn.attention.q_proj",
            "attn_k": "attn.attention.k_proj",
            "attn_v": "attn.attention.v_proj",
            "attn_output": "attn.attention.out_proj",
            "ffn_norm": "ln_2",
            "ffn_gate": "mlp.c_fc_0",
            "ffn_up": "mlp.c_fc_1",
            "ffn_down": "mlp.c_proj",
        },
        prefix="transformer.h",
        top={**TOP, "token_embd": "transformer.wte", "output_norm": "transformer.ln_f"},
        heads="implied",
    ),
    "exaone4": GgufFamily(model_type="exaone4", derive=_exaone4, derived=_WINDOW, layer=POST_NORM),
    "ernie4_5": GgufFamily(model_type="ernie4_5", flags={"use_bias": "attn_q.bias"}),
    "hunyuan-dense": GgufFamily(
        model_type="hunyuan_v1_dense",
        flags=BIASES,
        layer={
            **LAYER,
            "attn_q_norm": "self_attn.query_layernorm",
            "attn_k_norm": "self_attn.key_layernorm",
        },
    ),
    "seed_oss": GgufFamily(
        model_type="seed_oss",
        flags={**ALL_BIASES, "attention_out_bias": "attn_output.bias"},
        layer=NORM_NAMED_FOR_ATTENTION,
    ),
    "glm4": GgufFamily(
        model_type="glm4",
        flags=BIASES,
        layer={
            **LAYER,
            "ffn_up": "mlp.gate_up_proj",
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
        },
        partial_rotary=True,
    ),
    "arcee": GgufFamily(model_type="arcee", flags=ALL_BIASES, restored=PERMUTED),
    "jais2": GgufFamily(
        model_type="jais2", fields={**BASE, LAYER_EPS: "layer_norm_eps"}, flags=ALL_BIASES
    ),
    "apertus": GgufFamily(
        model_type="apertus",
        flags=BIASES,
        derived=frozenset(f"xielu.{name}" for name in _XIELU),
        layer={
            **LAYER,
            "attn_norm": "attention_layernorm",
            "ffn_norm": "feedforward_layernorm",
        },
        made=_xielu,
        heads="implied",
    ),
}
"""By `general.architecture`."""

MISTRAL = GgufFamily(model_type="mistral", says={"sliding_window": None}, restored=PERMUTED)
"""`mistral3` without the temperature of Ministral 3."""
OLMO3 = GgufFamily(
    model_type="olmo3",
    fields={**RMS, "attention.sliding_window": "sliding_window"},
    flags=BIASES,
    derive=_olmo3,
    derived=frozenset({"attention.sliding_window_pattern", "rope.freq_base_swa"}),
    layer=POST_NORM,
    heads="implied",
    rotary=False,
)
"""`olmo2` with layers that slide."""
