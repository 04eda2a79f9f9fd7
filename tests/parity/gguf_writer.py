"""A tiny transformers model -> a GGUF file, as llama.cpp's converter would write it.

The converter reads what is on the hub: transformers saves the model in that form here. Names of
tensors come from the library's own map, metadata from its writer; what the converter does to
numbers is done anew, in `gguf_changes`, and what it says of a model in `gguf_metadata`.
Source: llama.cpp, `convert_hf_to_gguf.py`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
import transformers
from safetensors.numpy import load_file
from tests.parity.gguf_changes import CHANGES, EXTRA, PERMUTED, Array, Changed, in_halves
from tests.parity.gguf_metadata import add_metadata

Store = Callable[[str, Array], tuple[npt.NDArray[Any], gguf.GGMLQuantizationType]]

ARCHITECTURES = {
    "afmoe": gguf.MODEL_ARCH.AFMOE,
    "apertus": gguf.MODEL_ARCH.APERTUS,
    "arcee": gguf.MODEL_ARCH.ARCEE,
    "bloom": gguf.MODEL_ARCH.BLOOM,
    "cohere": gguf.MODEL_ARCH.COMMAND_R,
    "cohere2": gguf.MODEL_ARCH.COHERE2,
    "deepseek_v2": gguf.MODEL_ARCH.DEEPSEEK2,
    "deepseek_v3": gguf.MODEL_ARCH.DEEPSEEK2,
    "dots1": gguf.MODEL_ARCH.DOTS1,
    "ernie4_5": gguf.MODEL_ARCH.ERNIE4_5,
    "ernie4_5_moe": gguf.MODEL_ARCH.ERNIE4_5_MOE,
    "exaone": gguf.MODEL_ARCH.EXAONE,
    "exaone4": gguf.MODEL_ARCH.EXAONE4,
    "exaone_moe": gguf.MODEL_ARCH.EXAONE_MOE,
    "falcon": gguf.MODEL_ARCH.FALCON,
    "falcon_h1": gguf.MODEL_ARCH.FALCON_H1,
    "falcon_mamba": gguf.MODEL_ARCH.MAMBA,
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "gemma3n_text": gguf.MODEL_ARCH.GEMMA3N,
    "gemma4_text": gguf.MODEL_ARCH.GEMMA4,
    "glm4": gguf.MODEL_ARCH.GLM4,
    "glm4_moe": gguf.MODEL_ARCH.GLM4_MOE,
    "glm4_moe_lite": gguf.MODEL_ARCH.DEEPSEEK2,
    "gpt2": gguf.MODEL_ARCH.GPT2,
    "gpt_bigcode": gguf.MODEL_ARCH.STARCODER,
    "gpt_neox": gguf.MODEL_ARCH.GPTNEOX,
    "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "granitemoe": gguf.MODEL_ARCH.GRANITE_MOE,
    "granitemoehybrid": gguf.MODEL_ARCH.GRANITE_HYBRID,
    "granitemoeshared": gguf.MODEL_ARCH.GRANITE_MOE,
    "hunyuan_v1_dense": gguf.MODEL_ARCH.HUNYUAN_DENSE,
    "hunyuan_v1_moe": gguf.MODEL_ARCH.HUNYUAN_MOE,
    "jais2": gguf.MODEL_ARCH.JAIS2,
    "jamba": gguf.MODEL_ARCH.JAMBA,
    "lfm2": gguf.MODEL_ARCH.LFM2,
    "lfm2_moe": gguf.MODEL_ARCH.LFM2MOE,
    "llama": gguf.MODEL_ARCH.LLAMA,
    "llama4_text": gguf.MODEL_ARCH.LLAMA4,
    "mamba": gguf.MODEL_ARCH.MAMBA,
    "mamba2": gguf.MODEL_ARCH.MAMBA2,
    "minimax_m2": gguf.MODEL_ARCH.MINIMAXM2,
    "ministral3": gguf.MODEL_ARCH.MISTRAL3,
    "mistral": gguf.MODEL_ARCH.MISTRAL3,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "mpt": gguf.MODEL_ARCH.MPT,
    "nemotron": gguf.MODEL_ARCH.NEMOTRON,
    "nemotron_h": gguf.MODEL_ARCH.NEMOTRON_H,
    "olmo": gguf.MODEL_ARCH.OLMO,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "olmo3": gguf.MODEL_ARCH.OLMO2,
    "olmoe": gguf.MODEL_ARCH.OLMOE,
    "phi": gguf.MODEL_ARCH.PHI2,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "phimoe": gguf.MODEL_ARCH.PHIMOE,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_5_moe_text": gguf.MODEL_ARCH.QWEN35MOE,
    "qwen3_5_text": gguf.MODEL_ARCH.QWEN35,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "qwen3_next": gguf.MODEL_ARCH.QWEN3NEXT,
    "seed_oss": gguf.MODEL_ARCH.SEED_OSS,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "solar_open": gguf.MODEL_ARCH.GLM4_MOE,
    "stablelm": gguf.MODEL_ARCH.STABLELM,
    "starcoder2": gguf.MODEL_ARCH.STARCODER2,
}
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")


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


@torch.no_grad()
def write_gguf(
    path: Path,
    model: transformers.PreTrainedModel,
    store: Store = as_float32,
    extra: Mapping[str, Any] | None = None,
    *,
    tokens: bool = False,
) -> None:
    """Write `model`; what storing changes in its weights is changed in the model too.

    Args:
        path: The new file.
        model: The model; its matrices become what the file holds, where they are stored under the
            name that they have in the model.
        store: What a tensor is written as.
        extra: Further metadata, by key without the architecture.
        tokens: Write a vocabulary too.
    """
    hub, tensors = _on_the_hub(model, path.parent / "hub")
    kind = str(hub["model_type"])
    architecture = ARCHITECTURES[kind]
    if kind == "nemotron_h" and "moe" in hub["layers_block_type"]:
        architecture = gguf.MODEL_ARCH.NEMOTRON_H_MOE
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    add_metadata(writer, hub)
    for key, value in (extra or {}).items():
        writer.add_key_value(f"{writer.arch}.{key}", value, gguf.GGUFValueType.get_type(value))
    if tokens:
        _add_tokens(writer, hub["vocab_size"])
    layers = hub.get("num_hidden_layers") or hub.get("n_layer") or hub.get("n_layers")
    layers = layers or len(hub["layers_block_type"])
    names = gguf.get_tensor_name_map(architecture, int(layers))
    parameters = dict(model.named_parameters())
    for name, values in _changed(kind, _stacked(tensors), hub, writer):
        if name == "lm_head.weight" and hub.get("tie_word_embeddings"):
            continue
        stored, stored_as = store(name, np.ascontiguousarray(values))
        if stored_as != gguf.GGMLQuantizationType.F32 and name in parameters:
            read = gguf.quants.dequantize(stored, stored_as).reshape(values.shape)
            if kind in PERMUTED and (part := name.split(".")[-2]) in ("q_proj", "k_proj"):
                read = in_halves(read, hub, part)
            parameters[name].copy_(torch.from_numpy(np.ascontiguousarray(read)))
        known = names.get_name(name, try_suffixes=(".weight", ".bias", ".scale"))
        writer.add_tensor(known or _own_name(name), stored, raw_dtype=stored_as)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokens(writer: gguf.GGUFWriter, count: int) -> None:
    """Write a vocabulary that llama.cpp loads: byte-level BPE with one merge, no special token."""
    letters = ["\u010a", *map(chr, range(33, 127))]  # the end of a line, and ASCII
    tokens = [*letters, "ab", *(f"token{number}" for number in range(count))][:count]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * count)
    writer.add_token_merges(["a b"])
    writer.add_add_bos_token(False)


def _own_name(name: str) -> str:
    """Return the name of a tensor that the converter names by itself."""
    assert re.match(r"(blk\.\d+|rope_\w+|token_embd)\.", name), name
    return name


def _on_the_hub(
    model: transformers.PreTrainedModel, folder: Path
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return config.json and the tensors as they are on the hub."""
    with open("/dev/null", "w") as nowhere, contextlib.redirect_stderr(nowhere):
        model.save_pretrained(folder)
    hub = json.loads((folder / "config.json").read_bytes())
    return hub, load_file(folder / "model.safetensors")


def _stacked(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Return the matrices of all experts as one, under the name that the converter gives it."""
    stacked: dict[str, Array] = {}
    experts: dict[str, dict[int, Array]] = {}
    for name, values in tensors.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            stacked[name] = values
        else:
            experts.setdefault(f"{match[1]}.{match[3]}.weight", {})[int(match[2])] = values
    return stacked | {
        name: np.stack([each[index] for index in sorted(each)]) for name, each in experts.items()
    }


def _changed(
    kind: str, tensors: Mapping[str, Array], hub: Mapping[str, Any], writer: gguf.GGUFWriter
) -> Iterator[Changed]:
    """Yield the tensors as the converter changes them, and those that it makes."""
    change = CHANGES.get(kind)
    for name, values in tensors.items():
        yield from [(name, values)] if change is None else change(name, values, hub)
    for extra in EXTRA.get(kind, ()):
        yield from extra(tensors, hub, writer)
