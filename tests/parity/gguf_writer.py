"""A tiny transformers model -> a GGUF file, as llama.cpp's converter would write it.

Names of tensors come from the library's own map, metadata from its writer; what the converter does
to numbers is done here anew. Source: llama.cpp, `convert_hf_to_gguf.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
import transformers

Array = npt.NDArray[np.float32]
Store = Callable[[str, Array], tuple[npt.NDArray[Any], gguf.GGMLQuantizationType]]

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "starcoder2": gguf.MODEL_ARCH.STARCODER2,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "stablelm": gguf.MODEL_ARCH.STABLELM,
    "cohere": gguf.MODEL_ARCH.COMMAND_R,
    "cohere2": gguf.MODEL_ARCH.COHERE2,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
}
PERMUTED = frozenset({"llama", "granite", "smollm3", "mixtral"})
PLUS_ONE = frozenset({"gemma", "gemma2", "gemma3_text"})


def as_float32(name: str, values: Array) -> tuple[npt.NDArray[Any], gguf.GGMLQuantizationType]:
    """Store every tensor in float32."""
    del name
    return values, gguf.GGMLQuantizationType.F32


def quantized(kind: gguf.GGMLQuantizationType) -> Store:
    """Store matrices as `kind`, vectors in float32, as llama.cpp does."""

    def store(name: str, values: Array) -> tuple[npt.NDArray[Any], gguf.GGMLQuantizationType]:
        if values.ndim < 2:
            return as_float32(name, values)
        return gguf.quants.quantize(values, kind), kind

    return store


def permute(weights: Array, heads: int) -> Array:
    """Bring the rows of each head from halves into pairs, as `LlamaModel.permute` does."""
    parts = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return parts.swapaxes(1, 2).reshape(weights.shape)


@torch.no_grad()
def write_gguf(
    path: Path,
    model: transformers.PreTrainedModel,
    store: Store = as_float32,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write `model`; what storing changes in its weights is changed in the model too.

    Args:
        path: The new file.
        model: The model; its matrices become what the file holds.
        store: What a tensor is written as.
        extra: Further metadata, by key without the architecture.
    """
    config = model.config
    kind = config.model_type
    architecture = ARCHITECTURES[kind]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _add_metadata(writer, config)
    for key, value in (extra or {}).items():
        writer.add_key_value(f"{writer.arch}.{key}", value, gguf.GGUFValueType.get_type(value))
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in _listed(model.state_dict()).items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = parameter.numpy()
        projection = name.split(".")[-2]
        permuted = kind in PERMUTED and projection in heads
        if permuted:
            values = permute(values, heads[projection])
        if kind in PLUS_ONE and name.endswith("norm.weight"):
            values = values + 1
        stored, stored_as = store(name, np.ascontiguousarray(values))
        if stored_as != gguf.GGMLQuantizationType.F32:
            read = gguf.quants.dequantize(stored, stored_as).reshape(values.shape)
            if permuted:
                count = heads[projection]
                pairs = read.reshape(count, read.shape[0] // count // 2, 2, *read.shape[1:])
                read = pairs.swapaxes(1, 2).reshape(read.shape)
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(read)))
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert known is not None, name
        writer.add_tensor(known, stored, raw_dtype=stored_as)
    _add_factors(writer, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _listed(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the experts' gates apart from what they gate, which transformers has as one."""
    listed = {}
    for name, tensor in state.items():
        if name.endswith("mlp.experts.gate_up_proj"):
            gate, up = tensor.chunk(2, dim=1)
            stem = name.removesuffix("gate_up_proj")
            listed |= {f"{stem}gate_proj.weight": gate, f"{stem}up_proj.weight": up}
        elif name.endswith("mlp.experts.down_proj"):
            listed[f"{name}.weight"] = tensor
        else:
            listed[name] = tensor
    return listed


def _add_metadata(writer: gguf.GGUFWriter, config: transformers.PretrainedConfig) -> None:
    head_size = getattr(config, "head_dim", None)
    head_size = head_size or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for names, add in {
        ("rms_norm_eps",): writer.add_layer_norm_rms_eps,
        ("norm_epsilon", "layer_norm_eps"): writer.add_layer_norm_eps,
        ("attention_multiplier",): writer.add_attention_scale,
        ("embedding_multiplier",): writer.add_embedding_scale,
        ("residual_multiplier",): writer.add_residual_scale,
        ("logits_scaling", "logit_scale"): writer.add_logit_scale,
        ("attn_logit_softcapping",): writer.add_attn_logit_softcapping,
        ("final_logit_softcapping",): writer.add_final_logit_softcapping,
        ("use_parallel_residual",): writer.add_parallel_residual,
        ("sliding_window",): writer.add_sliding_window,
        ("num_experts", "num_local_experts"): writer.add_expert_count,
        ("num_experts_per_tok",): writer.add_expert_used_count,
        ("moe_intermediate_size",): writer.add_expert_feed_forward_length,
        ("shared_expert_intermediate_size",): writer.add_expert_shared_feed_forward_length,
    }.items():
        for name in names:
            if getattr(config, name, None):
                add(getattr(config, name))
    if head_size * config.num_attention_heads != config.hidden_size or "gemma" in writer.arch:
        writer.add_key_length(head_size)
        writer.add_value_length(head_size)
    rope = dict(config.rope_parameters)
    if "full_attention" in rope:
        writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
        rope = dict(rope["full_attention"])
    else:
        writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_size * rope.get("partial_rotary_factor", 1.0)))
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] in ("longrope", "yarn"):
        original = rope["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        if rope["rope_type"] == "longrope":
            stretch = config.max_position_embeddings / original
            writer.add_rope_scaling_attn_factors(
                math.sqrt(1 + math.log(stretch) / math.log(original))
            )


def _add_factors(writer: gguf.GGUFWriter, config: transformers.PretrainedConfig) -> None:
    """Write the divisors of the frequencies, as `generate_extra_tensors` does."""
    rope = config.rope_parameters
    if rope.get("rope_type") == "longrope":
        for kind in ("long", "short"):
            writer.add_tensor(
                f"rope_factors_{kind}.weight", np.array(rope[f"{kind}_factor"], np.float32)
            )
    if rope.get("rope_type") == "llama3":
        size = config.head_dim
        frequencies = rope["rope_theta"] ** -(np.arange(0, size, 2) / size)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        turns = rope["original_max_position_embeddings"] * frequencies / (2 * np.pi)
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        divisors = 1 / ((1 - smooth) / rope["factor"] + smooth)
        writer.add_tensor("rope_freqs.weight", divisors.astype(np.float32))
