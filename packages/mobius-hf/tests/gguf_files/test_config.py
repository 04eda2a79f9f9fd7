"""Metadata -> fields of config.json; a key that would change the numbers is never ignored."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from mobius_hf.errors import CheckpointConfigError, UnknownModelTypeError
from mobius_hf.gguf.config import config_of
from mobius_hf.gguf.families import ALTERNATIVES, FAMILIES, find_family
from mobius_hf.gguf.family import GgufFamily
from mobius_hf.gguf.names import checkpoint_of
from mobius_hf.gguf.tensors import open_gguf
from mobius_hf.registry import supported_model_types

WriteGguf = Callable[..., Path]
Arrays = dict[str, np.ndarray]

WIDTH, HEADS, VOCAB = 64, 4, 32


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
        ({"xielu.beta": 3}, "xielu.beta is 3; needed: no key of another"),
        ({"llama.attention.value_length": 8}, "value_length is 8; needed: 16"),
        ({"llama.block_count": None}, "block_count is None; needed: it, as every model has"),
        ({"llama.attention.head_count": 0}, "head_count is 0; needed: a number of at least 1"),
        ({"llama.attention.head_count": [4, 2]}, r"head_count is \[4, 2\]; needed: a number of"),
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
        "somebody.quantized_at": "2026-01-01",
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


ALL = [*FAMILIES.items(), *((name, family) for name, (_, family) in ALTERNATIVES.items())]
# How llama.cpp's converter calls a tensor before it asks the library's map, where it renames it.
_CONVERTER = {
    r"e_score_correction_bias$": "e_score_correction.bias",
    r"\.mixer\.dt_bias$": ".mixer.dt.bias",
    r"dt_bias$": "dt_proj.bias",
    r"down_proj_bias$": "down_proj.bias",
    r"^backbone\.layers\.0\.mixer\.experts\.": "model.layers.0.mlp.experts.",
    r"^transformer\.(?=word_embeddings_|h\.0\.post_)": "",  # BLOOM's
    r"pre_ff_layernorm$": "pre_ff_layernorm.weight",  # Falcon-H1's, in the map
}
# What it names by itself, past the map.
_PAST_THE_MAP = {"router.scale", "router.per_expert_scale", "shared_mlp.output_linear"}


@pytest.mark.parametrize(("name", "family"), ALL, ids=[f"{n}-{f.model_type}" for n, f in ALL])
def test_every_family_is_one_that_we_build_under_the_names_of_the_library(
    name: str, family: GgufFamily
) -> None:
    """What we call a tensor is what the library's own map turns into the name in the file."""
    assert family.model_type in supported_model_types()
    (architecture,) = [key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == name]
    names = gguf.get_tensor_name_map(architecture, 1)
    known = {gguf.TENSOR_NAMES[each] for each in gguf.MODEL_TENSORS[architecture]}
    layer = {f"blk.0.{part}": f"{family.prefix}.0.{ours}" for part, ours in family.layer.items()}
    checked = 0
    for stored, ours in {**family.top, **layer}.items():
        part = re.sub(r"\.(weight|bias|scale)$", "", stored)
        if part.replace("blk.0", "blk.{bid}") not in known or ours.endswith(tuple(_PAST_THE_MAP)):
            continue
        found = {names.get_name(ours, try_suffixes=("", ".weight", ".bias"))}
        for pattern, renamed in _CONVERTER.items():
            other = re.sub(pattern, renamed, ours)
            found.add(names.get_name(other, try_suffixes=("", ".weight", ".bias")))
        assert found & {part, stored}, (stored, ours)
        checked += 1
    assert checked > 5


def test_a_refused_architecture_says_why(write_gguf: WriteGguf) -> None:
    path = write_gguf(architecture="gptj")
    with pytest.raises(UnknownModelTypeError, match=r"'gptj', .*: llama\.cpp writes no such"):
        fields(path)


def test_layers_that_predict_further_tokens_are_not_of_the_model(
    write_gguf: WriteGguf, llama_tensors: Arrays
) -> None:
    tensors = llama_tensors | {"blk.1.nextn.eh_proj.weight": np.ones((WIDTH, WIDTH), np.float32)}
    metadata = {"llama.block_count": 2, "llama.nextn_predict_layers": 1}
    file = open_gguf(write_gguf(metadata=metadata, tensors=tensors))
    family = find_family(file)
    assert config_of(file, family)["num_hidden_layers"] == 1
    assert "blk.1.nextn.eh_proj.weight" not in checkpoint_of(file, family)


@pytest.mark.parametrize(
    ("layers", "expected"), [((0, 2, 2, 0), "[1, 2]"), ((0, 0, 0, 0), r"\[\]")]
)
def test_layers_of_jamba_come_at_regular_distances(
    write_gguf: WriteGguf, llama_metadata: dict[str, Any], layers: Any, expected: str
) -> None:
    metadata = {key.replace("llama", "jamba"): value for key, value in llama_metadata.items()}
    own = {
        "jamba.block_count": 4,
        "jamba.attention.head_count_kv": list(layers),
        "jamba.ssm.inner_size": 128,
        "jamba.rope.freq_base": None,
    }
    old = dict.fromkeys(llama_metadata)
    path = write_gguf(architecture="jamba", metadata={**old, **metadata, **own})
    if layers == (0, 2, 2, 0):
        with pytest.raises(CheckpointConfigError, match="attn_layer is of layers"):
            fields(path)
    else:
        with pytest.raises(CheckpointConfigError, match=rf"of layers {expected} of 4"):
            fields(path)


def deepseek(write_gguf: WriteGguf, llama_metadata: dict[str, Any], **own: Any) -> dict[str, Any]:
    metadata = {key.replace("llama", "deepseek2"): value for key, value in llama_metadata.items()}
    values = {f"deepseek2.{key.replace('__', '.')}": value for key, value in own.items()}
    old = dict.fromkeys(llama_metadata)
    path = write_gguf(architecture="deepseek2", metadata={**old, **metadata, **values})
    return fields(path)


ABSORBED = {
    "attention__key_length": 40,
    "attention__value_length": 32,
    "attention__key_length_mla": 24,
    "attention__value_length_mla": 20,
}
EACH_HEAD = {"attention__key_length": 24, "attention__value_length": 20}


@pytest.mark.parametrize("widths", [ABSORBED, EACH_HEAD], ids=["today", "before"])
def test_widths_of_latent_attention(
    write_gguf: WriteGguf, llama_metadata: dict[str, Any], widths: dict[str, int]
) -> None:
    """The same keys have other meanings since keys and values are those of one head."""
    own = {**widths, "attention__kv_lora_rank": 32, "rope__dimension_count": 8}
    found = deepseek(write_gguf, llama_metadata, **own)
    names = ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "num_key_value_heads")
    assert [found[name] for name in names] == [8, 16, 20, HEADS]
    assert found["q_lora_rank"] is None


@pytest.mark.parametrize(
    ("experts", "gating", "expected"),
    [
        (160, 1, ("deepseek_v2", 8, 3, "group_limited_greedy")),
        (64, 1, ("deepseek_v2", 1, 1, "greedy")),
        (256, 2, ("deepseek_v3", 8, 4, None)),
        (384, 2, ("deepseek_v3", 1, 1, None)),
    ],
)
def test_groups_of_experts_that_older_files_do_not_say(
    write_gguf: WriteGguf, llama_metadata: dict[str, Any], experts: int, gating: int, expected: Any
) -> None:
    own = {**EACH_HEAD, "rope__dimension_count": 8}
    found = deepseek(
        write_gguf, llama_metadata, expert_count=experts, expert_gating_func=gating, **own
    )
    names = ("model_type", "n_group", "topk_group", "topk_method")
    assert tuple(found.get(name) for name in names) == expected


def test_experts_whose_gates_are_stored_with_what_they_gate(
    write_gguf: WriteGguf, llama_metadata: dict[str, Any], llama_tensors: Arrays
) -> None:
    stacked = {"blk.0.ffn_gate_up_exps.weight": np.ones((2, 8, WIDTH), np.float32)}
    metadata = {"llama.expert_count": 2, "llama.expert_used_count": 1}
    file = open_gguf(write_gguf(metadata=metadata, tensors=llama_tensors | stacked))
    found = checkpoint_of(file, find_family(file))
    assert tuple(found["model.layers.0.mlp.experts.gate_up_proj"].shape.numpy()) == (2, 8, WIDTH)


def test_a_phimoe_with_longrope_is_refused(
    write_gguf: WriteGguf, llama_metadata: dict[str, Any], llama_tensors: Arrays
) -> None:
    factors = {f"rope_factors_{each}.weight": np.ones(8, np.float32) for each in ("long", "short")}
    metadata = {key.replace("llama", "phimoe"): value for key, value in llama_metadata.items()}
    path = write_gguf(
        architecture="phimoe",
        metadata={**dict.fromkeys(llama_metadata), **metadata},
        tensors=llama_tensors | factors,
    )
    with pytest.raises(CheckpointConfigError, match="lack the model's short_mscale"):
        fields(path)


def test_a_falcon_h1_without_a_head_is_refused(
    write_gguf: WriteGguf, llama_metadata: dict[str, Any]
) -> None:
    metadata = {key.replace("llama", "falcon-h1"): value for key, value in llama_metadata.items()}
    path = write_gguf(
        architecture="falcon-h1", metadata={**dict.fromkeys(llama_metadata), **metadata}
    )
    with pytest.raises(CheckpointConfigError, match=r"without output\.weight lacks the factor"):
        fields(path)


def test_a_bamba_is_refused(write_gguf: WriteGguf, llama_metadata: dict[str, Any]) -> None:
    name = "granitehybrid"
    metadata = {key.replace("llama", name): value for key, value in llama_metadata.items()}
    own = {f"{name}.rope.scaling.finetuned": True}
    path = write_gguf(
        architecture=name, metadata={**dict.fromkeys(llama_metadata), **metadata, **own}
    )
    with pytest.raises(CheckpointConfigError, match="finetuned is True; needed: False"):
        fields(path)


@pytest.mark.parametrize(("stored", "expected"), [(0, None), (2047, 2047)])
def test_no_window_of_phi3_is_a_window_of_zero(
    write_gguf: WriteGguf, llama_metadata: dict[str, Any], stored: int, expected: int | None
) -> None:
    metadata = {key.replace("llama", "phi3"): value for key, value in llama_metadata.items()}
    own = {"phi3.attention.sliding_window": stored}
    path = write_gguf(
        architecture="phi3", metadata={**dict.fromkeys(llama_metadata), **metadata, **own}
    )
    assert fields(path)["sliding_window"] == expected


@pytest.mark.parametrize(
    ("name", "own", "message"),
    [
        ("mamba", {}, r"ssm\.inner_size is None; needed: it, as every model of this"),
        (
            "gemma4",
            {"attention.key_length": 16},
            r"no tensor 'rope_freqs\.weight', as every model",
        ),
        ("gemma3n", {"activation_sparsity_scale": [0.5]}, r"no tensor 'per_layer_token_embd\."),
        ("granitehybrid", {"attention.head_count_kv": [0]}, r"ssm\.inner_size is None"),
    ],
)
def test_what_an_architecture_needs_and_a_file_lacks(
    write_gguf: WriteGguf, llama_metadata: dict[str, Any], name: str, own: Any, message: str
) -> None:
    metadata = {key.replace("llama", name): value for key, value in llama_metadata.items()}
    metadata |= {f"{name}.{key}": value for key, value in own.items()}
    path = write_gguf(architecture=name, metadata={**dict.fromkeys(llama_metadata), **metadata})
    with pytest.raises(CheckpointConfigError, match=message):
        fields(path)
