"""Fixtures: model folders with tiny weights, and the real configs where this checkout has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

Arrays = Mapping[str, npt.NDArray[Any]]
WriteModel = Callable[..., Path]

TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "tie_word_embeddings": True,
}


@pytest.fixture
def tiny_llama() -> dict[str, Any]:
    """Return the config of a one-layer llama."""
    return dict(TINY_LLAMA)


@pytest.fixture
def arrays() -> dict[str, npt.NDArray[Any]]:
    """Return the tensors of `tiny_llama`, float32, all values different."""
    rng = np.random.default_rng(0)
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (32, 16),
        "model.norm.weight": (16,),
        f"{layer}input_layernorm.weight": (16,),
        f"{layer}post_attention_layernorm.weight": (16,),
        f"{layer}self_attn.q_proj.weight": (16, 16),
        f"{layer}self_attn.k_proj.weight": (16, 16),
        f"{layer}self_attn.v_proj.weight": (16, 16),
        f"{layer}self_attn.o_proj.weight": (16, 16),
        f"{layer}mlp.gate_proj.weight": (24, 16),
        f"{layer}mlp.up_proj.weight": (24, 16),
        f"{layer}mlp.down_proj.weight": (16, 24),
    }
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


@pytest.fixture
def write_model(tmp_path: Path) -> WriteModel:
    """Return a function that writes a model folder and returns it."""

    def write(
        config: Mapping[str, Any] | None = None,
        tensors: Arrays | None = None,
        *,
        shards: Mapping[str, Arrays] | None = None,
        folder: str = "model",
    ) -> Path:
        """Write `config.json`, one safetensors file, or shards with their index."""
        path = tmp_path / folder
        path.mkdir(parents=True, exist_ok=True)
        if config is not None:
            (path / "config.json").write_text(json.dumps(config))
        if tensors is not None:
            save_file(dict(tensors), path / "model.safetensors")
        if shards is not None:
            for file, content in shards.items():
                save_file(dict(content), path / file)
            weight_map = {name: file for file, content in shards.items() for name in content}
            (path / "model.safetensors.index.json").write_text(
                json.dumps({"metadata": {}, "weight_map": weight_map})
            )
        return path

    return write
