"""What llama.cpp's converter does to the tensors of each family. Source: `convert_hf_to_gguf.py`.

Independent of what reads the files: names are those on the hub, or those that the library's map
knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from tests.parity.gguf_metadata import with_global_heads

Array = npt.NDArray[np.float32]
Hub = Mapping[str, Any]
Changed = tuple[str, Array]
Change = Callable[[str, Array, Hub], Iterator[Changed]]
Extra = Callable[[Mapping[str, Array], Hub, gguf.GGUFWriter], Iterator[Changed]]

PERMUTED = frozenset(
    {
        *("llama", "granite", "smollm3", "mixtral", "olmo", "arcee", "granitemoe"),
        *("granitemoeshared", "granitemoehybrid", "ministral3", "mistral"),
    }
)


def _heads(hub: Hub, part: str) -> int:
    keys = hub.get("num_key_value_heads") or hub["num_attention_heads"]
    return int(hub["num_attention_heads"] if part == "q_proj" else keys)


def in_pairs(values: Array, hub: Hub, part: str) -> Array:
    """Bring the rows of each head from halves into pairs."""
    heads = _heads(hub, part)
    parts = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return parts.swapaxes(1, 2).reshape(values.shape)


def in_halves(values: Array, hub: Hub, part: str) -> Array:
    """Bring them back."""
    heads = _heads(hub, part)
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _permuted(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    part = name.split(".")[-2] if "." in name else ""
    yield name, in_pairs(values, hub, part) if part in ("q_proj", "k_proj") else values


def _plus_one(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    yield name, values + 1 if name.endswith("norm.weight") else values


def _gpt2(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    stored_in_out = name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))
    yield name, values.T if stored_in_out else values


def _falcon(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    if "query_key_value" not in name:
        yield name, values
        return
    heads = hub["num_attention_heads"]
    keys = hub["num_kv_heads"] if hub["new_decoder_architecture"] else 1
    size = hub["hidden_size"] // heads
    groups = values.reshape(keys, heads // keys + 2, size, *values.shape[1:])
    query, key, value = groups[:, :-2], groups[:, -2], groups[:, -1]
    parts = [each.reshape(-1, *values.shape[1:]) for each in (query, key, value)]
    yield name, np.concatenate(parts)


def _three_of_each_head(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    name = re.sub(r"^transformer\.", "", name)
    if "query_key_value" not in name:
        yield name, values
        return
    heads = hub.get("n_head") or hub["num_attention_heads"]
    parts = values.reshape(heads, 3, -1, *values.shape[1:]).swapaxes(0, 1)
    yield name, parts.reshape(values.shape)


def _gpt_oss(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    if name.endswith("sinks"):
        yield f"{name}.weight", values
    elif name.endswith("down_proj_bias"):
        yield name.replace("down_proj_bias", "down_proj.bias"), values
    elif name.endswith("down_proj"):
        yield f"{name}.weight", values.swapaxes(1, 2)
    elif name.endswith("gate_up_proj_bias"):
        yield name.replace("gate_up_proj_bias", "gate_proj.bias"), values[:, ::2]
        yield name.replace("gate_up_proj_bias", "up_proj.bias"), values[:, 1::2]
    elif name.endswith("gate_up_proj"):
        rows = values.swapaxes(1, 2)
        yield name.replace("gate_up_proj", "gate_proj.weight"), rows[:, ::2]
        yield name.replace("gate_up_proj", "up_proj.weight"), rows[:, 1::2]
    else:
        yield name, values


def _corrected(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    if name.endswith("e_score_correction_bias"):
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    yield name, values


def _deepseek(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    if not name.endswith("kv_b_proj.weight"):
        yield from _corrected(name, values, hub)
        return
    key, value = hub["qk_nope_head_dim"], hub["v_head_dim"]
    heads = values.reshape(hub["num_attention_heads"], key + value, -1)
    yield name.replace("kv_b_proj", "k_b_proj"), heads[:, :key].swapaxes(1, 2)
    yield name.replace("kv_b_proj", "v_b_proj"), heads[:, key:]


def _granite_experts(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    layer = re.search(r"layers\.(\d+)\.", name)
    experts = bool(hub.get("num_local_experts"))
    if name.endswith("block_sparse_moe.input_linear.weight"):
        gate, up = np.split(values, 2, axis=1)
        yield f"blk.{layer[1]}.ffn_gate_exps.weight", gate  # type: ignore[index]
        yield f"blk.{layer[1]}.ffn_up_exps.weight", up  # type: ignore[index]
    elif name.endswith("shared_mlp.input_linear.weight"):
        end = "_shexp" if experts else ""
        gate, up = np.split(values, 2)
        yield f"blk.{layer[1]}.ffn_gate{end}.weight", gate  # type: ignore[index]
        yield f"blk.{layer[1]}.ffn_up{end}.weight", up  # type: ignore[index]
    elif name.endswith("shared_mlp.output_linear.weight") and not experts:
        yield f"blk.{layer[1]}.ffn_down.weight", values  # type: ignore[index]
    else:
        yield from _permuted(name, values, hub)


def _mamba(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    if name.endswith(".A_log"):
        values = -np.exp(values)
    yield name, values.squeeze(1) if name.endswith("conv1d.weight") else values


def _mamba2(groups: str) -> Change:
    def change(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
        if name.endswith(".A_log"):
            values = -np.exp(values)[:, None]
        elif name.endswith(".D"):
            values = values[:, None]
        elif name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
            values = values.reshape(hub[groups], -1)
        elif name.endswith("conv1d.weight"):
            values = values.squeeze(1)
        if name.endswith(".dt_bias"):
            name = name.replace(".dt_bias", ".dt_proj.bias")
        yield name, values

    return change


def _granite_hybrid(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    if ".mamba." in name:
        yield from _mamba2("mamba_n_groups")(name, values, hub)
    else:
        yield from _granite_experts(name, values, hub)


def _falcon_h1(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    factors = {
        "down_proj": hub["mlp_multipliers"][1],
        "gate_proj": hub["mlp_multipliers"][0],
        "k_proj": hub["key_multiplier"] * hub["attention_in_multiplier"],
        "q_proj": hub["attention_in_multiplier"],
        "v_proj": hub["attention_in_multiplier"],
        "o_proj": hub["attention_out_multiplier"],
        "out_proj": hub["ssm_out_multiplier"],
        "in_proj": hub["ssm_in_multiplier"],
        "lm_head": hub["lm_head_multiplier"],
        "embed_tokens": hub["embedding_multiplier"],
    }
    part = next((part for part in factors if part == name.split(".")[-2]), None)
    values = values * np.float32(factors.get(part or "", 1.0))
    if part == "in_proj":
        inner = hub["mamba_d_ssm"]
        state = hub["mamba_n_groups"] * hub["mamba_d_state"]
        ends = np.cumsum([inner, inner, state, state])
        sections = np.split(values, ends)
        factors_ = hub["ssm_multipliers"]
        values = np.concatenate(
            [each * np.float32(factor) for each, factor in zip(sections, factors_, strict=True)]
        )
    yield from _mamba2("mamba_n_groups")(name, values, hub)


def _jamba(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    if ".feed_forward.experts." in name:
        name = name.replace(".feed_forward.", ".mlp.")
    yield from _mamba(name, values, hub)


def _nemotron_h(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    if ".mixer.experts." in name:
        name = name.replace("backbone.layers.", "model.layers.").replace(".mixer.", ".mlp.")
    if name.endswith(".dt_bias"):
        yield name.replace(".dt_bias", ".dt.bias"), values
        return
    for changed, each in _mamba2("n_groups")(name, values, hub):
        yield from _corrected(changed, each, hub)


def _afmoe(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    yield f"{name}.bias" if name.endswith("expert_bias") else name, values


def _lfm2(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    if name.endswith("expert_bias"):
        name += ".bias"
    name = re.sub(r"^model\.(layers\.\d+\.feed_forward\.experts)", r"\1", name)
    yield name, values.squeeze(1) if name.endswith("conv.conv.weight") else values


def _qwen3_next(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    layer = re.search(r"layers\.(\d+)\.", name)
    if name.endswith("in_proj_qkvz.weight"):
        keys, each = hub["linear_num_key_heads"], hub["linear_key_head_dim"]
        value = hub["linear_num_value_heads"] // keys * hub["linear_value_head_dim"]
        groups = values.reshape(keys, 2 * each + 2 * value, -1)
        parts = np.split(groups, np.cumsum([each, each, value]), axis=1)
        flat = [part.reshape(-1, values.shape[1]) for part in parts]
        yield f"blk.{layer[1]}.attn_qkv.weight", np.concatenate(flat[:3])  # type: ignore[index]
        yield f"blk.{layer[1]}.attn_gate.weight", flat[3]  # type: ignore[index]
        return
    if name.endswith(".A_log"):
        values = -np.exp(values)
    elif name.endswith(".dt_bias"):
        name = name.replace(".dt_bias", ".dt_proj.bias")
    elif name.endswith("conv1d.weight"):
        values = values.squeeze(1)
    elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        values = values + 1
    if name.endswith("shared_expert_gate.weight"):
        values = values[0]  # llama.cpp has no matrices of one row once it has quantised a file
    yield name, values


def _qwen35(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    keys, heads = hub["linear_num_key_heads"], hub["linear_num_value_heads"]

    def tiled(part: Array, size: int, axis: int = 0) -> Array:
        shape = part.shape
        apart = part.reshape(*shape[:axis], keys, heads // keys, size, *shape[axis + 1 :])
        return apart.swapaxes(axis, axis + 1).reshape(shape)

    width = hub["linear_value_head_dim"]
    before = 2 * keys * hub["linear_key_head_dim"]
    if ".in_proj_qkv." in name or ".conv1d." in name:
        values = np.concatenate([values[:before], tiled(values[before:], width)])
    elif ".in_proj_z." in name:
        values = tiled(values, width)
    elif re.search(r"\.in_proj_[ab]\.|\.A_log|\.dt_bias", name):
        values = tiled(values, 1)
    elif ".linear_attn.out_proj." in name:
        values = tiled(values, width, axis=1)
    yield from _qwen3_next(name, values, hub)


def _llama4(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    if name.endswith("experts.down_proj"):
        yield f"{name}.weight", values.swapaxes(1, 2)
    elif name.endswith("experts.gate_up_proj"):
        gate, up = np.split(values.swapaxes(1, 2), 2, axis=1)
        yield name.replace("gate_up_proj", "gate_proj.weight"), gate
        yield name.replace("gate_up_proj", "up_proj.weight"), up
    else:
        yield name, values


def _gemma3n(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    if "altup_projections" in name or "altup_unembed" in name:
        return
    if "embed_tokens" in name:
        missing = hub["vocab_size"] - values.shape[0]
        values = np.pad(values, ((0, missing), (0, 0)))
    yield f"{name}.weight" if name.endswith("_scale") else name, values


def _altup(tensors: Mapping[str, Array], hub: Hub, writer: gguf.GGUFWriter) -> Iterator[Changed]:
    for name in ("altup_projections", "altup_unembed_projections"):
        streams = range(hub["altup_num_inputs"] - 1)
        stacked = np.stack([tensors[f"model.{name}.{index}.weight"] for index in streams])
        yield f"model.{name}.weight", stacked


def _gemma4(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    layer = re.search(r"layers\.(\d+)\.", name)
    if name.endswith("router.scale"):
        yield f"blk.{layer[1]}.ffn_gate_inp.scale", values  # type: ignore[index]
    elif name.endswith("per_expert_scale"):
        yield f"blk.{layer[1]}.ffn_down_exps.scale", values  # type: ignore[index]
    elif name.endswith("layer_scalar") or ".experts." in name:
        yield f"{name}.weight", values.reshape(values.shape or (1,))
    else:
        yield name, values


def _proportional(
    tensors: Mapping[str, Array], hub: Hub, writer: gguf.GGUFWriter
) -> Iterator[Changed]:
    del tensors, writer
    size = with_global_heads(hub)["global_head_dim"]
    rotating = int(size * hub["rope_parameters"]["full_attention"]["partial_rotary_factor"] / 2)
    stopped = size // 2 - rotating
    yield "rope_freqs.weight", np.array([1.0] * rotating + [1e30] * stopped, np.float32)


def _apertus(name: str, values: Array, hub: Hub) -> Iterator[Changed]:
    if ".act_fn." not in name:
        yield name, values


def _xielu(tensors: Mapping[str, Array], hub: Hub, writer: gguf.GGUFWriter) -> Iterator[Changed]:
    for part, add in {
        "alpha_n": writer.add_xielu_alpha_n,
        "alpha_p": writer.add_xielu_alpha_p,
        "beta": writer.add_xielu_beta,
        "eps": writer.add_xielu_eps,
    }.items():
        names = [f"model.layers.{i}.mlp.act_fn.{part}" for i in range(hub["num_hidden_layers"])]
        add([float(tensors[name].reshape(())) for name in names])
    yield from ()


def _factors(tensors: Mapping[str, Array], hub: Hub, writer: gguf.GGUFWriter) -> Iterator[Changed]:
    """Yield the divisors of the frequencies."""
    del tensors, writer
    rope = hub["rope_parameters"]
    if rope.get("rope_type") == "longrope":
        for kind in ("long", "short"):
            yield f"rope_factors_{kind}.weight", np.array(rope[f"{kind}_factor"], np.float32)
    if rope.get("rope_type") == "llama3":
        size = hub.get("head_dim") or hub["hidden_size"] // hub["num_attention_heads"]
        frequencies = rope["rope_theta"] ** -(np.arange(0, size, 2) / size)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        turns = rope["original_max_position_embeddings"] * frequencies / (2 * np.pi)
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        divisors = 1 / ((1 - smooth) / rope["factor"] + smooth)
        yield "rope_freqs.weight", divisors.astype(np.float32)


CHANGES: Mapping[str, Change] = {
    **dict.fromkeys(PERMUTED, _permuted),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "nemotron"), _plus_one),
    **dict.fromkeys(("bloom", "gpt_neox"), _three_of_each_head),
    **dict.fromkeys(("granitemoe", "granitemoeshared"), _granite_experts),
    **dict.fromkeys(("mamba", "falcon_mamba"), _mamba),
    **dict.fromkeys(("lfm2", "lfm2_moe"), _lfm2),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"), _deepseek),
    **dict.fromkeys(
        ("dots1", "ernie4_5_moe", "exaone_moe", "glm4_moe", "minimax_m2", "solar_open"), _corrected
    ),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text"), _qwen35),
    "afmoe": _afmoe,
    "apertus": _apertus,
    "falcon": _falcon,
    "falcon_h1": _falcon_h1,
    "gemma3n_text": _gemma3n,
    "gemma4_text": _gemma4,
    "gpt2": _gpt2,
    "gpt_oss": _gpt_oss,
    "granitemoehybrid": _granite_hybrid,
    "jamba": _jamba,
    "llama4_text": _llama4,
    "mamba2": _mamba2("n_groups"),
    "nemotron_h": _nemotron_h,
    "qwen3_next": _qwen3_next,
}
"""By model type; others are written as they are."""
EXTRA: Mapping[str, tuple[Extra, ...]] = {
    **dict.fromkeys(("llama", "phi3", "phimoe", "exaone", "exaone4", "arcee"), (_factors,)),
    "apertus": (_xielu, _factors),
    "gemma3n_text": (_altup,),
    "gemma4_text": (_proportional,),
}
"""Tensors and metadata that are made of others."""
