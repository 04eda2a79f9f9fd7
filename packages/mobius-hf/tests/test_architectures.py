"""Every family against transformers: what it saves is what our module's parameters need.

Covers C018, C019, C063, C065, C130: a bijection, no tensor left over and no parameter unfilled.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers
from onnxscript import nn
from tests.parity.reference import CONFIGS, VARIANTS, make_model

from mobius.sources import SourceOptions
from mobius_hf.checkpoint import open_checkpoint
from mobius_hf.config import read_config
from mobius_hf.errors import CheckpointConfigError
from mobius_hf.registry import find_architecture, supported_model_types
from mobius_hf.repository import Folder
from mobius_hf.source import source
from mobius_hf.weights import map_weights

torch.set_num_threads(1)
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
# Families whose parameters have the names and values of the checkpoint.
CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    ("mistral", {"sliding_window": 8}),
    ("mistral", {"head_dim": 16, "sliding_window": None}),
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 8}),
    ("qwen3", {"head_dim": 16}),
    ("qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
]


def _hf_config(model_type: str, fields: dict[str, Any]) -> Any:
    config_class: Any = transformers.CONFIG_MAPPING[model_type]
    return config_class(**SIZES, **fields)


def _hf_model(model_type: str, fields: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(_hf_config(model_type, fields)).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(parameter.shape.numpy())
        for name, parameter in module.named_parameters()
        if parameter.shape is not None
    }


def test_every_family_has_a_case() -> None:
    assert set(CONFIGS) == set(supported_model_types())


@pytest.mark.parametrize("max_shard_size", ["1GB", "20KB"], ids=["single", "sharded"])
@pytest.mark.parametrize(("model_type", "fields"), CASES)
def test_checkpoint_and_parameters_are_a_bijection(
    tmp_path: Path, model_type: str, fields: dict[str, Any], max_shard_size: str
) -> None:
    model = _hf_model(model_type, fields)
    model.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    assert (tmp_path / "model.safetensors").exists() == (max_shard_size == "1GB")

    opened = source.open(str(tmp_path), SourceOptions())
    weights = opened.load_weights()

    shapes = _shapes(opened.make_module())
    assert {name: tuple(tensor.shape.numpy()) for name, tensor in weights.items()} == shapes
    state = model.state_dict()
    expected = state.keys() - ({"lm_head.weight"} if fields.get("tie_word_embeddings") else set())
    assert weights.keys() == expected
    for name, tensor in weights.items():
        np.testing.assert_array_equal(tensor.numpy(), state[name].numpy())


@pytest.mark.parametrize("model_type", [*CONFIGS, *VARIANTS])
def test_every_tensor_becomes_a_parameter(tmp_path: Path, model_type: str) -> None:
    """Split, transposed and renamed as they may be: nothing is left over, nothing is missing."""
    model = make_model(model_type)
    model.save_pretrained(tmp_path)
    opened = source.open(str(tmp_path), SourceOptions())
    weights = opened.load_weights()
    shapes = _shapes(opened.make_module())
    assert {name: tuple(tensor.shape.numpy()) for name, tensor in weights.items()} == shapes
    ours = sum(
        math.prod(shape) for name, shape in shapes.items() if name.endswith((".beta", ".eps"))
    )
    elements = sum(math.prod(shape) for shape in shapes.values()) - ours
    # Buffers of transformers' modules that checkpoints hold.
    stored = ("e_score_correction_bias", "expert_bias", "layer_scalar")
    buffers = [buffer for name, buffer in model.named_buffers() if name.endswith(stored)]
    assert elements == sum(each.numel() for each in [*model.parameters(), *buffers])


@pytest.mark.parametrize("model_type", [*CONFIGS, *VARIANTS])
def test_saved_configs_read_the_same_without_transformers(tmp_path: Path, model_type: str) -> None:
    """Case C130: the raw file with our own defaults gives what transformers resolves."""
    make_model(model_type).config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    raw = read_config(path)
    architecture = find_architecture(raw["model_type"], config=path, has_own_code=False)
    config = architecture.to_config(raw, path)
    assert config == architecture.to_config(raw, path, through_transformers=False)


@pytest.mark.parametrize("model_type", list(CONFIGS))
def test_a_field_that_is_not_read_is_refused(tmp_path: Path, model_type: str) -> None:
    make_model(model_type).config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    raw = read_config(path) | {"score_multiplier": 2.0}
    architecture = find_architecture(raw["model_type"], config=path, has_own_code=False)
    with pytest.raises(CheckpointConfigError, match=r"score_multiplier = 2\.0"):
        architecture.to_config(raw, path)


def test_bfloat16_checkpoints_keep_their_bits(tmp_path: Path) -> None:
    model = _hf_model("qwen3", {"head_dim": 16}, torch.bfloat16)
    model.save_pretrained(tmp_path)
    opened = source.open(str(tmp_path), SourceOptions())
    assert str(opened.config.dtype) == "BFLOAT16"
    for name, tensor in opened.load_weights().items():
        array = tensor.numpy()
        assert array.dtype == ml_dtypes.bfloat16
        bits = model.state_dict()[name].view(torch.int16).numpy()
        np.testing.assert_array_equal(array.view(np.int16), bits)


def test_c019_a_bare_model_has_the_parameters_without_the_head(tmp_path: Path) -> None:
    model = _hf_model("llama", {"tie_word_embeddings": True})
    model.model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(Folder("bare", tmp_path))
    assert "layers.0.mlp.up_proj.weight" in checkpoint
    raw = json.loads((tmp_path / "config.json").read_text())
    architecture = find_architecture("llama", config=tmp_path, has_own_code=False)
    config = architecture.to_config(raw, tmp_path)
    weights = map_weights(architecture, config, checkpoint)
    assert weights.keys() == _shapes(architecture.make_module(config)).keys()


@pytest.mark.parametrize(("model_type", "fields"), CASES)
def test_configs_that_transformers_saves_read_the_same_without_it(
    tmp_path: Path, model_type: str, fields: dict[str, Any]
) -> None:
    _hf_config(model_type, fields).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    raw = read_config(path)
    architecture = find_architecture(model_type, config=path, has_own_code=False)
    config = architecture.to_config(raw, path)
    assert config == architecture.to_config(raw, path, through_transformers=False)
    assert {name: getattr(config, name) for name in SIZES} == SIZES
