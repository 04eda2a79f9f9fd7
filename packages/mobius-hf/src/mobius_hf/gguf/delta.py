"""Qwen's architectures of GGUF files with the gated delta rule.

Source: llama.cpp, `convert_hf_to_gguf.py` and `src/llama-model.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from mobius_hf.gguf.experts import QWEN_SHARED, QWEN_SHARED_FIELDS
from mobius_hf.gguf.family import Facts, GgufFamily, Restore
from mobius_hf.gguf.parts import BIASES, LAYER, RMS
from mobius_hf.gguf.restore import (
    EXPERTS,
    as_row,
    less_one_of,
    log_of_negative,
    one_after_the_other,
    per_channel,
)
from mobius_hf.transforms import leaf
from mobius_ir_rules.lazy import Concat, DerivedTensor, Expression, Reshape, Slice, Transpose

_DELTA_FIELDS = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
}
_DERIVED = frozenset({"ssm.inner_size"})
# Which layers attend is in the tensors; text has one position, on whatever axis.
_ASIDE = frozenset({"full_attention_interval", "rope.dimension_sections"})
_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_NORMS = less_one_of(
    *("attn_norm", "post_attention_norm", "attn_q_norm", "attn_k_norm", "output_norm")
)


def _derive(facts: Facts) -> Mapping[str, Any]:
    attending = facts.layers_with("attn_q.weight")
    return {
        "layer_types": ["full_attention" if each else "linear_attention" for each in attending],
        "linear_value_head_dim": facts.values["ssm.inner_size"]
        // facts.values["ssm.time_step_rank"],
    }


def _without_ffn_norm(layer: Mapping[str, str]) -> dict[str, str]:
    return {part: name for part, name in layer.items() if part != "ffn_norm"}


def _by_key(axis: int, *, width: bool, after_keys: bool = False) -> Restore:
    """Return what brings values from the order of llama.cpp back to that of their keys.

    With several values a key, llama.cpp has the first of every key, then the second of every key.
    Source: `_LinearAttentionVReorderBase`, which does the opposite.

    Args:
        axis: Along which the values lie.
        width: A value has as many entries as it is wide, not one.
        after_keys: Queries and keys come before the values.
    """

    def restore(tensor: ir.TensorProtocol, facts: Facts) -> ir.TensorProtocol:
        keys, values = facts.values["ssm.group_count"], facts.values["ssm.time_step_rank"]
        size = facts.values["ssm.inner_size"] // values if width else 1
        before = 2 * keys * facts.values["ssm.state_size"] if after_keys else 0
        source: Expression = leaf(tensor)
        every = (slice(None),) * (len(source.shape) - axis - 1)
        ahead = (slice(None),) * axis
        part = Slice(source, (*ahead, slice(before, source.shape[axis]), *every))
        shape = part.shape
        apart = (*shape[:axis], values // keys, keys, size, *shape[axis + 1 :])
        order = list(range(len(apart)))
        order[axis], order[axis + 1] = order[axis + 1], order[axis]
        sorted_values: Expression = Reshape(Transpose(Reshape(part, apart), tuple(order)), shape)
        if before:
            head = Slice(source, (*ahead, slice(0, before), *every))
            sorted_values = Concat((head, sorted_values), axis)
        return DerivedTensor(sorted_values, tensor.name)

    return restore


_BY_KEY: Mapping[str, Restore] = {
    "attn_qkv.weight": _by_key(0, width=True, after_keys=True),
    "attn_gate.weight": _by_key(0, width=True),
    "ssm_alpha.weight": _by_key(0, width=False),
    "ssm_beta.weight": _by_key(0, width=False),
    "ssm_a": one_after_the_other(_by_key(0, width=False), log_of_negative),
    "ssm_dt.bias": _by_key(0, width=False),
    "ssm_conv1d.weight": one_after_the_other(_by_key(0, width=True, after_keys=True), per_channel),
    "ssm_out.weight": _by_key(1, width=True),
}
_QWEN35_NAMES = {
    **_NAMES,
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
}

DELTA: Mapping[str, GgufFamily] = {
    "qwen3next": GgufFamily(
        model_type="qwen3_next",
        fields={**QWEN_SHARED_FIELDS, **_DELTA_FIELDS},
        flags=BIASES,
        says={"norm_topk_prob": True, "decoder_sparse_step": 1},
        derive=_derive,
        derived=_DERIVED,
        aside=_ASIDE,
        layer={
            **_without_ffn_norm(QWEN_SHARED),
            **_NAMES,
            "ssm_in": "linear_attn.in_proj_qkvz",
            "ssm_ba": "linear_attn.in_proj_ba",
        },
        restored={
            **_NORMS,
            "ssm_conv1d.weight": per_channel,
            "ssm_a": log_of_negative,
            "ffn_gate_inp_shexp": as_row,
        },
        joined=EXPERTS,
        partial_rotary=True,
    ),
    "qwen35": GgufFamily(
        model_type="qwen3_5_text",
        fields={**RMS, **_DELTA_FIELDS},
        flags=BIASES,
        derive=_derive,
        derived=_DERIVED,
        aside=_ASIDE,
        layer={**_without_ffn_norm(LAYER), **_QWEN35_NAMES},
        restored={**_NORMS, **_BY_KEY},
        partial_rotary=True,
    ),
    "qwen35moe": GgufFamily(
        model_type="qwen3_5_moe_text",
        fields={**QWEN_SHARED_FIELDS, **_DELTA_FIELDS},
        flags=BIASES,
        derive=_derive,
        derived=_DERIVED,
        aside=_ASIDE,
        layer={**_without_ffn_norm(QWEN_SHARED), **_QWEN35_NAMES},
        restored={**_NORMS, **_BY_KEY, "ffn_gate_inp_shexp": as_row},
        joined=EXPERTS,
        partial_rotary=True,
    ),
}
"""By `general.architecture`."""
