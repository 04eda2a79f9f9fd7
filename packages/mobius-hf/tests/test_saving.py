"""Checkpoints through build and save: ties once in the file, every spelling of a name, 2 GB."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from safetensors.numpy import load_file, save_file

import mobius
from mobius.errors import WeightsError
from mobius_hf.architectures.phi3 import ARCHITECTURE as PHI3
from mobius_hf.mapped_tensor import open_safetensors
from mobius_hf.weights import map_weights

Arrays = dict[str, npt.NDArray[Any]]


def wide(vocab: int = 4096) -> tuple[dict[str, Any], Arrays]:
    """Return config and tensors of a tied llama whose table is most of it."""
    width = 64
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }
    rng = np.random.default_rng(0)
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (vocab, width),
        "model.norm.weight": (width,),
        f"{layer}input_layernorm.weight": (width,),
        f"{layer}post_attention_layernorm.weight": (width,),
        **{f"{layer}self_attn.{name}_proj.weight": (width, width) for name in "qkvo"},
        f"{layer}mlp.gate_proj.weight": (96, width),
        f"{layer}mlp.up_proj.weight": (96, width),
        f"{layer}mlp.down_proj.weight": (width, 96),
    }
    return config, {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("ep", "dtype", "size"),
    [
        ("default", "f32", 4),
        ("cpu", "f32", 4),
        ("onnx-standard", "f32", 4),
        ("cuda", "f16", 2),
        ("webgpu", "f16", 2),
    ],
)
def test_c055_a_tied_table_is_once_in_the_file(
    write_model: Any, tmp_path: Path, ep: str, dtype: str, size: int
) -> None:
    config, tensors = wide()
    package = mobius.build(write_model(config, tensors), execution_provider=ep, dtype=dtype)
    package.save(tmp_path / "out")
    stored = sum(array.size for array in tensors.values()) * size
    written = (tmp_path / "out" / "model.onnx.data").stat().st_size
    assert stored <= written <= 1.05 * stored + 8192  # with rotary tables, and aligned
    model = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False)
    tables = {
        tuple(item.value for item in tensor.external_data)
        for tensor in model.graph.initializer
        if 4096 in tensor.dims
    }
    assert len(tables) == 1


GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "vocab_size": 32,
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 8,
}


def gpt2_tensors(prefix: str) -> Arrays:
    rng = np.random.default_rng(0)
    width = 16
    shapes = {
        "wte.weight": (32, width),
        "wpe.weight": (8, width),
        "h.0.ln_1.weight": (width,),
        "h.0.ln_1.bias": (width,),
        "h.0.ln_2.weight": (width,),
        "h.0.ln_2.bias": (width,),
        "h.0.attn.c_attn.weight": (width, 3 * width),
        "h.0.attn.c_attn.bias": (3 * width,),
        "h.0.attn.c_proj.weight": (width, width),
        "h.0.attn.c_proj.bias": (width,),
        "h.0.mlp.c_fc.weight": (width, 4 * width),
        "h.0.mlp.c_fc.bias": (4 * width,),
        "h.0.mlp.c_proj.weight": (4 * width, width),
        "h.0.mlp.c_proj.bias": (width,),
        "ln_f.weight": (width,),
        "ln_f.bias": (width,),
    }
    return {f"{prefix}{name}": rng.standard_normal(s, np.float32) for name, s in shapes.items()}


def test_c019_the_same_package_with_and_without_prefix(write_model: Any, tmp_path: Path) -> None:
    """GPT-2's own files have no prefix; transformers writes `transformer.`."""
    for prefix in ("", "transformer."):
        folder = write_model(GPT2, gpt2_tensors(prefix), folder=f"model-{prefix}")
        mobius.build(folder).save(tmp_path / f"out-{prefix}")
    for name in ("model.onnx", "model.onnx.data"):
        plain, prefixed = (tmp_path / f"out-{prefix}" / name for prefix in ("", "transformer."))
        assert plain.read_bytes() == prefixed.read_bytes()


def test_c018_a_tensor_under_another_name_is_told_with_the_nearest(
    write_model: Any, tiny_llama: Any, arrays: Any
) -> None:
    arrays["model.layers.0.mlp.gate_projection.weight"] = arrays.pop(
        "model.layers.0.mlp.gate_proj.weight"
    )
    with pytest.raises(WeightsError) as caught:
        mobius.build(write_model(tiny_llama, arrays))
    near = "model.layers.0.mlp.gate_projection.weight"
    assert f"missing: model.layers.0.mlp.gate_proj.weight (nearest: {near})" in str(caught.value)


def test_c115_gate_and_up_are_the_halves_of_one_matrix(tmp_path: Path) -> None:
    """And each is a range of the file's bytes, however the matrix is stored."""
    raw = {
        "model_type": "phi3",
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "pad_token_id": 0,
    }
    config = PHI3.to_config(raw, tmp_path / "config.json")
    joined = np.arange(48 * 16, dtype=np.float16).reshape(48, 16)
    name = "model.layers.0.mlp.gate_up_proj.weight"
    save_file({name: joined}, tmp_path / "model.safetensors")
    found = map_weights(PHI3, config, open_safetensors(tmp_path / "model.safetensors"))
    halves = {"model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"}
    assert found.keys() == halves
    gate, up = (found[each].numpy() for each in sorted(halves))
    np.testing.assert_array_equal(gate, joined[:24])
    np.testing.assert_array_equal(up, joined[24:])


@pytest.mark.slow
def test_a_table_of_more_than_2_gb(write_model: Any, tmp_path: Path) -> None:
    """C109: offsets and lengths past 2^31, in a file that has only its last row on the disk."""
    config, tensors = wide(vocab=8)
    folder = write_model({**config, "vocab_size": 9_000_000}, tensors)
    path = folder / "model.safetensors"
    others = load_file(path)
    table = others.pop("model.embed_tokens.weight")
    header, end = {}, 9_000_000 * 64 * 4
    header["model.embed_tokens.weight"] = {
        "dtype": "F32",
        "shape": [9_000_000, 64],
        "data_offsets": [0, end],
    }
    for name, array in others.items():
        span = [end, end + array.nbytes]
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": span}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        start = file.tell()
        file.seek(start + 9_000_000 * 64 * 4 - 256)
        file.write(table[-1].tobytes())
        for name, array in others.items():
            file.seek(start + header[name]["data_offsets"][0])  # type: ignore[index]
            file.write(array.tobytes())
    assert path.stat().st_size > 2**31
    package = mobius.build(folder, execution_provider="cpu", dtype="f32")
    package.save(folder, weights="reference")
    assert hidden(folder)
    package.save(tmp_path / "out")
    assert (tmp_path / "out" / "model.onnx.data").stat().st_size > 2**31
    assert hidden(tmp_path / "out")
    os.unlink(tmp_path / "out" / "model.onnx.data")


def hidden(package: Path) -> bool:
    """Return whether the last token is the likeliest after itself: no other has an embedding."""
    session = ort.InferenceSession(package / "model.onnx", providers=["CPUExecutionProvider"])
    feeds: dict[str, npt.NDArray[Any]] = {
        each.name: np.zeros((1, 4, 0, 16), np.float32) for each in session.get_inputs()
    }
    feeds["input_ids"] = np.array([[8_999_999]])
    feeds["attention_mask"] = np.ones((1, 1), np.int64)
    if "position_ids" in feeds:
        feeds["position_ids"] = np.zeros((1, 1), np.int64)
    (logits,) = session.run(["logits"], feeds)
    scores = np.asarray(logits)[0, 0]
    return bool((scores[:-1] == 0).all() and scores[-1] != 0)
