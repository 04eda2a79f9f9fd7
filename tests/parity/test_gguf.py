"""Packages from GGUF files compute what transformers computes with the numbers in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import transformers
from tests.parity.decoder import Decoder, padded_logits
from tests.parity.gguf_writer import Store, as_float32, quantized, write_gguf
from tests.parity.reference import ABSENT, logits_alone, make_model

import mobius

Kind = gguf.GGMLQuantizationType
LENGTHS, DECODE_STEPS = (20, 13), 3
TOLERANCE = 1e-5  # of the largest logit

# Fields that GGUF has no key for, as llama.cpp takes them to be, where they are not as usual.
FIELDS: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": False},
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
    "starcoder2": {"sliding_window": None},
    "smollm3": {
        "num_hidden_layers": 5,
        "no_rope_layers": [1, 1, 1, 0, 1],
        "use_sliding_window": False,
        "sliding_window": None,
    },
    "mixtral": {"sliding_window": None},
    "qwen2_moe": {"use_sliding_window": False, "mlp_only_layers": [], "norm_topk_prob": False},
    "qwen3_moe": {"decoder_sparse_step": 1, "norm_topk_prob": True},
    "cohere2": {
        "tie_word_embeddings": True,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    },
}
FAMILIES = [
    *("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "starcoder2", "granite"),
    *("smollm3", "olmo2", "stablelm", "cohere", "cohere2", "mixtral", "qwen2_moe", "qwen3_moe"),
]


def compare(
    model: transformers.PreTrainedModel,
    tmp_path: Path,
    ep: str,
    store: Store = as_float32,
    extra: dict[str, Any] | None = None,
) -> None:
    """Write `model` as GGUF, build that, and compare logits of padded rows."""
    write_gguf(tmp_path / "model.gguf", model, store, extra)
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
        assert np.abs(logits - expected).max() <= TOLERANCE * largest


@pytest.mark.parametrize("model_type", FAMILIES)
def test_families(tmp_path: Path, model_type: str) -> None:
    compare(make_model(model_type, **FIELDS.get(model_type, {})), tmp_path, "cpu")


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
