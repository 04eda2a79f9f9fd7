"""Packages from GGUF files compute what transformers computes with the numbers in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from tests.parity.decoder import Decoder, padded_logits
from tests.parity.gguf_writer import Store, as_float32, quantized, write_gguf
from tests.parity.reference import ABSENT, logits_alone, make_model

import mobius

Kind = gguf.GGMLQuantizationType
LENGTHS, DECODE_STEPS = (20, 13), 3
TOLERANCE = 1e-5  # of the largest logit
# As llama.cpp takes the two weights to be: equal.
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}

# Layers that own their keys end with one of each type, for those after them.
TURNS = {"layer_types": ["sliding_attention", "full_attention"] * 3}
EVERY_FOURTH_ATTENDS = {
    "linear_key_head_dim": 16,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}
# Fields that GGUF has no key for, as llama.cpp takes them to be, where they are not as usual.
FIELDS: dict[str, dict[str, Any]] = {
    "afmoe": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    },
    "apertus": {"attention_bias": False},
    "arcee": {"attention_bias": False, "mlp_bias": False},
    "cohere2": {
        "tie_word_embeddings": True,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    },
    "deepseek_v2": {"mlp_bias": False, "rope_parameters": YARN},
    "deepseek_v2-lite": {"mlp_bias": False, "rope_parameters": YARN},
    "deepseek_v3": {"attention_bias": False, "rope_parameters": YARN},
    "dots1": {"attention_bias": False, "sliding_window": None, "num_key_value_heads": 4},
    "ernie4_5": {"use_bias": False},
    "ernie4_5_moe": {"use_bias": False, "moe_num_shared_experts": 1, "intermediate_size": 64},
    "exaone_moe": {"mlp_layer_types": ["dense", "sparse", "sparse"], "num_shared_experts": 2},
    "falcon": {"ffn_hidden_size": 256},
    "falcon-40b": {"ffn_hidden_size": 256, "bias": False},
    "falcon-one-norm": {"ffn_hidden_size": 256},
    "falcon_h1": {"projectors_bias": False},
    "falcon_h1-norm": {"projectors_bias": False},
    "gemma2": {"query_pre_attn_scalar": 16, "tie_word_embeddings": True},
    "gemma3_text": {
        "query_pre_attn_scalar": 16,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5},
        },
    },
    "glm4_moe_lite": {"mlp_layer_types": ["dense", "sparse", "sparse"]},
    "gpt_oss": {"swiglu_limit": 7.0},
    "llama4_text": {
        "no_rope_layers": [1, 1, 1, 0],
        "attention_chunk_size": 8192,
        "floor_scale": 8192,
        "attn_scale": 0.1,
        "attention_bias": False,
    },
    "mamba": {"use_bias": False},
    "mamba2": {"use_bias": False},
    "gemma3n_text": {"vocab_size_per_layer_input": 211, "altup_num_inputs": 4, **TURNS},
    "gemma4_text": TURNS,
    "hunyuan_v1_dense": {"attention_bias": False},
    "hunyuan_v1_moe": {"attention_bias": False},
    "jamba": {"mamba_proj_bias": False},
    "lfm2": {"conv_bias": False},
    "granitemoehybrid-dense": {"num_local_experts": 0, "num_experts_per_tok": 0},
    "lfm2_moe": {
        "conv_bias": False,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": True,
    },
    "mistral": {"sliding_window": None},
    "mixtral": {"sliding_window": None},
    "mpt": {"attn_config": {"clip_qkv": 1.5}},
    "nemotron": {"head_dim": 16},
    "nemotron_h": {
        "layers_block_type": ["mamba", "moe", "attention", "moe", "mamba"],
        "use_bias": False,
        "mlp_bias": False,
    },
    "nemotron_h-dense": {
        "layers_block_type": ["mamba", "mlp", "attention", "mlp", "mamba"],
        "use_bias": False,
        "mlp_bias": False,
    },
    "olmoe": {"clip_qkv": None, "num_key_value_heads": 4},
    "phi": {"num_key_value_heads": 4},
    "phimoe": {"router_jitter_noise": 0.01},
    "qwen2": {"use_sliding_window": False},
    "qwen2_moe": {"use_sliding_window": False, "mlp_only_layers": [], "norm_topk_prob": False},
    "qwen3_5_moe_text": EVERY_FOURTH_ATTENDS,
    "qwen3_5_text": {"attention_bias": False, **EVERY_FOURTH_ATTENDS},
    "qwen3_moe": {"decoder_sparse_step": 1, "norm_topk_prob": True},
    "qwen3_next": {"mlp_only_layers": [], **EVERY_FOURTH_ATTENDS},
    "seed_oss": {"attention_out_bias": False, "mlp_bias": False},
    "smollm3": {
        "num_hidden_layers": 5,
        "no_rope_layers": [1, 1, 1, 0, 1],
        "use_sliding_window": False,
        "sliding_window": None,
    },
    "starcoder2": {"sliding_window": None},
}
# The package from safetensors is as far off: these tiny models blow rounding up.
ROUNDED = dict.fromkeys(("gemma4_text", "gemma4_text-experts", "qwen3_5_moe_text"), 2e-5)
# Whose layers, heads or experts come in more than one way.
LAYOUTS = {"nemotron_h-dense": "nemotron_h", "granitemoehybrid-dense": "granitemoehybrid"}
FAMILIES = [
    *("afmoe", "apertus", "arcee", "bloom", "cohere", "cohere2", "deepseek_v2", "deepseek_v2-lite"),
    *("deepseek_v3", "dots1", "ernie4_5", "ernie4_5_moe", "exaone", "exaone4", "exaone_moe"),
    *("falcon", "falcon-40b", "falcon-one-norm", "falcon_h1", "falcon_h1-norm", "falcon_mamba"),
    *("gemma", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gemma4_text-experts"),
    *("glm4", "glm4_moe", "glm4_moe_lite", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "granite"),
    *("granitemoe", "granitemoehybrid", "granitemoehybrid-dense", "granitemoeshared"),
    *("hunyuan_v1_dense", "hunyuan_v1_moe", "jais2", "jamba", "lfm2", "lfm2_moe", "llama"),
    *("llama4_text", "mamba", "mamba2", "minimax_m2", "ministral3", "mistral", "mixtral", "mpt"),
    *("nemotron", "nemotron_h", "nemotron_h-dense", "olmo", "olmo-clip", "olmo2", "olmo3"),
    *("olmoe", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_5_moe_text"),
    *(
        "qwen3_5_text",
        "qwen3_moe",
        "qwen3_next",
        "seed_oss",
        "smollm3",
        "solar_open",
        "stablelm",
        "starcoder2",
    ),
]


def compare(
    model: transformers.PreTrainedModel,
    tmp_path: Path,
    ep: str,
    store: Store = as_float32,
    extra: dict[str, Any] | None = None,
    tolerance: float = TOLERANCE,
    *,
    by_transformers: bool = False,
) -> None:
    """Write `model` as GGUF, build that, and compare logits of padded rows."""
    write_gguf(tmp_path / "model.gguf", model, store, extra, tokens=by_transformers)
    if by_transformers:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path, gguf_file="model.gguf", dtype=torch.float32, attn_implementation="eager"
        ).eval()
    package = mobius.build(tmp_path / "model.gguf", execution_provider=ep, dtype="f32")
    package.save(tmp_path / "package")
    rng = np.random.default_rng(1)
    rows = [rng.integers(0, model.config.vocab_size, length) for length in LENGTHS]
    ours = padded_logits(
        Decoder(tmp_path / "package" / "model.onnx"), rows, DECODE_STEPS, side="right"
    )
    for row, logits in zip(rows, ours, strict=True):
        expected = logits_alone(model, row, DECODE_STEPS, chunks=())
        largest = np.abs(expected).max()
        assert np.abs(logits - expected).max() <= tolerance * largest


@pytest.mark.parametrize("model_type", FAMILIES)
def test_families(tmp_path: Path, model_type: str) -> None:
    layout = LAYOUTS.get(model_type, model_type)
    # The CPU's attention with ALiBi is slow, of which it warns.
    ep = "default" if model_type in ("bloom", "mpt") else "cpu"
    model = make_model(layout, **FIELDS.get(model_type, {}))
    compare(model, tmp_path, ep, tolerance=ROUNDED.get(model_type, TOLERANCE))


# What transformers' own reader of GGUF files does not leave out, ignore or refuse.
BY_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "bloom": {},
    "falcon": {},
    "lfm2": {},
    "llama": {"attention_bias": False, "mlp_bias": False, "rope_parameters": {"rope_theta": 500.0}},
    "mamba": {},
    "minimax_m2": {},
    "nemotron": {"attention_bias": False, "mlp_bias": False},
    "qwen2": {},
    "qwen3": {"head_dim": 128},
    "stablelm": {},
    "starcoder2": {},
}


@pytest.mark.parametrize("model_type", BY_TRANSFORMERS)
def test_transformers_reads_the_same_from_the_file(tmp_path: Path, model_type: str) -> None:
    """Another reader, that knows nothing of the writer here, as the reference."""
    pytest.importorskip("accelerate", reason="transformers reads GGUF files with accelerate")
    fields = FIELDS.get(model_type, {}) | BY_TRANSFORMERS[model_type]
    ep = "default" if model_type == "bloom" else "cpu"
    compare(make_model(model_type, **fields), tmp_path, ep, by_transformers=True)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0},
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "rope_theta": 500.0,
            "original_max_position_embeddings": 32,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_rope_scaling(tmp_path: Path, rope: dict[str, Any]) -> None:
    compare(make_model("llama", rope_parameters=rope), tmp_path, "cpu")


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q5_1])
def test_types_that_the_library_writes(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    compare(make_model("llama"), tmp_path, "default", quantized(kind))


@torch.no_grad()
def test_experts_of_four_bits(tmp_path: Path) -> None:
    """As gpt-oss is given out: its experts are MXFP4, everything else is not."""

    def store(name: str, values: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
        if ".mlp.experts." not in name or name.endswith("bias"):
            return as_float32(name, values)
        return gguf.quants.quantize(values, Kind.MXFP4), Kind.MXFP4

    def rounded(rows: np.ndarray) -> np.ndarray:
        four_bits = gguf.quants.quantize(np.ascontiguousarray(rows), Kind.MXFP4)
        return gguf.quants.dequantize(four_bits, Kind.MXFP4).reshape(rows.shape)

    model = make_model("gpt_oss", **FIELDS["gpt_oss"])
    for name, weights in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            rows = rounded(weights.numpy().swapaxes(1, 2))
            assert not np.array_equal(rows, weights.numpy().swapaxes(1, 2))
            np.testing.assert_array_equal(rounded(rows), rows)  # so that the file holds them
            weights.copy_(torch.from_numpy(rows.swapaxes(1, 2).copy()))
    compare(model, tmp_path, "cpu", store)


# Bytes of a block at which its float16 scales are.
SCALES = {
    Kind.Q2_K: (80, 82),
    Kind.Q3_K: (108,),
    Kind.Q4_K: (0, 2),
    Kind.Q5_K: (0, 2),
    Kind.Q6_K: (208,),
    Kind.IQ4_XS: (0,),
}


@pytest.mark.parametrize("kind", SCALES, ids=lambda kind: kind.name)
def test_types_of_superblocks(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    """The library reads these but does not write them: blocks are random."""
    rng = np.random.default_rng(0)
    block, nbytes = gguf.GGML_QUANT_SIZES[kind]

    def store(name: str, values: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
        if values.ndim < 2:
            return as_float32(name, values)
        rows, width = values.shape
        blocks = rng.integers(0, 256, (rows, width // block, nbytes), np.uint8)
        scale = 1.0
        for _ in range(2):  # as it is, then for numbers of the size of the model's own
            for at in SCALES[kind]:
                blocks[..., at : at + 2] = np.array([scale], np.float16).view(np.uint8)
            read = gguf.quants.dequantize(blocks.reshape(rows, -1), kind)
            scale = float(values.std() / read.std())
        return blocks.reshape(rows, -1), kind

    model = make_model(
        "llama", hidden_size=256, intermediate_size=512, num_hidden_layers=2, head_dim=ABSENT
    )
    compare(model, tmp_path, "cpu", store)
