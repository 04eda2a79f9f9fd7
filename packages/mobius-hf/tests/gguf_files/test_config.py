"""Metadata -> fields of config.json; a key that would change the numbers is never ignored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from mobius_hf.errors import CheckpointConfigError, UnknownModelTypeError
from mobius_hf.gguf.config import config_of, find_family
from mobius_hf.gguf.families import FAMILIES, LAYER, TOP
from mobius_hf.gguf.tensors import open_gguf
from mobius_hf.registry import supported_model_types

WriteGguf = Callable[..., Path]
Arrays = dict[str, np.ndarray]

WIDTH, VOCAB = 64, 32


def fields(path: Path) -> dict[str, Any]:
    file = open_gguf(path)
    return config_of(file, find_family(file))


def test_llama(write_gguf: WriteGguf) -> None:
    assert fields(write_gguf()) == {
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
    }


def test_a_head_of_its_own_and_biases(write_gguf: WriteGguf, llama_tensors: Arrays) -> None:
    tensors = llama_tensors | {
        "output.weight": np.ones((VOCAB, WIDTH), np.float32),
        "blk.0.attn_q.bias": np.ones(WIDTH, np.float32),
        "blk.0.ffn_up.bias": np.ones(96, np.float32),
    }
    found = fields(write_gguf(tensors=tensors))
    assert not found["tie_word_embeddings"]
    assert found["attention_bias"]
    assert found["mlp_bias"]


@pytest.mark.parametrize(
    ("kinds", "dtype"),
    [
        ({gguf.GGMLQuantizationType.F16}, "float16"),
        ({gguf.GGMLQuantizationType.BF16}, "bfloat16"),
        ({gguf.GGMLQuantizationType.Q8_0}, "float32"),
    ],
)
def test_dtype_is_that_of_the_matrices(write_gguf: WriteGguf, kinds: set[Any], dtype: str) -> None:
    (kind,) = kinds
    assert fields(write_gguf(kind=kind))["dtype"] == dtype


def test_tokens(write_gguf: WriteGguf) -> None:
    metadata = {
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 7,
        "tokenizer.ggml.padding_token_id": 0,
    }
    found = fields(write_gguf(metadata=metadata))
    assert (found["bos_token_id"], found["eos_token_id"], found["pad_token_id"]) == (1, [2, 7], 0)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"llama.rope.scaling.type": "none"}, None),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1.0}, None),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            {"rope_type": "linear", "factor": 4.0},
        ),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 32,
                "llama.rope.scaling.yarn_beta_fast": 16.0,
            },
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "beta_fast": 16.0,
            },
        ),
    ],
)
def test_rope_scaling(write_gguf: WriteGguf, metadata: Any, expected: Any) -> None:
    assert fields(write_gguf(metadata=metadata)).get("rope_scaling") == expected


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.attention.surprise": 3}, "llama.attention.surprise is 3; needed: no key that"),
        ({"llama.expert_used_count": 2}, "expert_used_count is 2; needed: 0, the only value"),
        ({"llama.attention.clamp_kqv": 5.0}, "clamp_kqv is 5.0; needed: 0.0"),
        ({"llama.attention.causal": False}, "causal is False; needed: True"),
        ({"qwen2.block_count": 3}, "qwen2.block_count is 3; needed: no key of another"),
        ({"llama.attention.value_length": 8}, "value_length is 8; needed: 16"),
        ({"llama.block_count": None}, "block_count is None; needed: it, as every model has"),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.attn_factor": 2.0},
            "scaling.type is 'yarn'; needed: none, linear, or yarn without attn_factor",
        ),
        ({"llama.rope.scaling.type": "spiral"}, "scaling.type is 'spiral'"),
    ],
)
def test_what_would_change_the_numbers_is_refused(
    write_gguf: WriteGguf, metadata: Any, message: str
) -> None:
    with pytest.raises(CheckpointConfigError, match=message):
        fields(write_gguf(metadata=metadata))


def test_a_llama_with_experts_is_a_mixtral(write_gguf: WriteGguf) -> None:
    found = fields(write_gguf(metadata={"llama.expert_count": 8, "llama.expert_used_count": 2}))
    assert found["model_type"] == "mixtral"
    assert (found["num_local_experts"], found["num_experts_per_tok"]) == (8, 2)


def test_keys_that_change_nothing(write_gguf: WriteGguf) -> None:
    metadata = {
        "general.name": "A name",
        "llama.vocab_size": VOCAB,
        "llama.tensor_data_layout": "Meta AI original pth",
        "llama.expert_count": 0,
        "quantize.imatrix.file": "imatrix.dat",
    }
    assert fields(write_gguf(metadata=metadata)) == fields(write_gguf("plain.gguf"))


def test_unknown_architecture(write_gguf: WriteGguf) -> None:
    path = write_gguf(architecture="lama")
    with pytest.raises(UnknownModelTypeError, match=r"is 'lama', .* Did you mean 'llama'"):
        fields(path)


def test_not_a_language_model(write_gguf: WriteGguf) -> None:
    path = write_gguf(tensors={"conv.weight": np.ones((4, 4), np.float32)})
    with pytest.raises(CheckpointConfigError, match=r"no tensor 'token_embd\.weight'"):
        fields(path)


@pytest.mark.parametrize("layers", [46, 2])
def test_scale_of_the_largest_gemma2(
    write_gguf: WriteGguf, llama_metadata: dict[str, Any], layers: int
) -> None:
    """No key holds it: 27B, known by its layers, has another than the width of its heads."""
    metadata = {key.replace("llama", "gemma2"): value for key, value in llama_metadata.items()}
    old = dict.fromkeys(llama_metadata)
    own = {"gemma2.block_count": layers, "gemma2.attention.key_length": 32}
    path = write_gguf(architecture="gemma2", metadata={**old, **metadata, **own})
    assert fields(path)["query_pre_attn_scalar"] == (16 if layers == 46 else 32)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (None, "sssssf"),
        (3, "ssfssf"),
        ([True, False, True, False, False, True], "sfsffs"),
    ],
)
def test_layers_of_gemma3(
    write_gguf: WriteGguf, llama_metadata: dict[str, Any], pattern: Any, expected: str
) -> None:
    metadata = {key.replace("llama", "gemma3"): value for key, value in llama_metadata.items()}
    own = {"gemma3.block_count": 6, "gemma3.attention.sliding_window_pattern": pattern}
    path = write_gguf(
        architecture="gemma3", metadata={**dict.fromkeys(llama_metadata), **metadata, **own}
    )
    assert "".join(each[0] for each in fields(path)["layer_types"]) == expected


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_one_that_we_build_under_the_names_of_the_library(name: str) -> None:
    """What we call a tensor is what the library's own map turns into the name in the file."""
    family = FAMILIES[name]
    assert family.model_type.replace("-", "_") in supported_model_types()
    (architecture,) = [key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == name]
    names = gguf.get_tensor_name_map(architecture, 1)
    known = {gguf.TENSOR_NAMES[each] for each in gguf.MODEL_TENSORS[architecture]}
    layer = {f"blk.0.{part}": f"model.layers.0.{each}" for part, each in family.layer.items()}
    for stored, ours in {**TOP, **layer}.items():
        if stored.replace("blk.0", "blk.{bid}") in known and (stored, name) != ("attn_qkv", name):
            assert names.get_name(ours) == stored, (stored, ours)
    assert LAYER.keys() <= family.layer.keys()
