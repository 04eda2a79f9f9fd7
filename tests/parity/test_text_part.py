"""`text_only=True`: the language model of a multimodal checkpoint says what the whole model says.

The reference is the whole model of transformers, given tokens and no image: its positions along
three axes, its masks for image tokens and its embedding are then those of text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.decoder import Decoder, padded_logits
from tests.parity.reference import TINY, logits_alone, make_config, randomize

import mobius
from mobius_hf.errors import CheckpointConfigError
from mobius_hf.text_part import ALIASES, VERIFIED

LENGTHS, DECODE_STEPS = (14, 9), 3
TOLERANCE = 3e-5  # of the largest logit

_CLIP = {"model_type": "clip_vision_model", "image_size": 32, "patch_size": 8}
_SIGLIP = {"model_type": "siglip_vision_model", "image_size": 32, "patch_size": 8}
_SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
_LAYERS = {"num_hidden_layers": 1, **_SMALL}
_QWEN_VISION = {"depth": 1, "num_heads": 2, "embed_dim": 32, "hidden_size": 64, "patch_size": 8}
_AXES = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [2, 3, 3]}


def _text(model_type: str, **own: Any) -> dict[str, Any]:
    """Return the tiny config of a language model, as the part of another."""
    return make_config(model_type, **own).to_dict()


def _plain(model_type: str, **own: Any) -> dict[str, Any]:
    """Return tiny fields of a text part that is no model of its own."""
    fields = {name: value for name, value in TINY.items() if name != "head_dim"}
    return {**fields, "model_type": model_type, **own}


# Model type -> text part, vision part, other fields.
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "gemma3": (_text("gemma3_text"), {**_SIGLIP, **_LAYERS}, {"mm_tokens_per_image": 4}),
    "llava": (_text("llama"), {**_CLIP, **_LAYERS, "projection_dim": 32}, {}),
    "mistral3": (_text("mistral"), {"model_type": "pixtral", **_LAYERS, "head_dim": 16}, {}),
    "mistral3-ministral3": (
        _text("ministral3"),
        {"model_type": "pixtral", **_LAYERS, "head_dim": 16},
        {},
    ),
    "qwen2_vl": (_plain("qwen2_vl_text", rope_parameters=_AXES), _QWEN_VISION, {}),
    "qwen2_5_vl": (
        _plain("qwen2_5_vl_text", rope_parameters=_AXES),
        {**_QWEN_VISION, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 64},
        {},
    ),
    "qwen3_vl": (
        _plain("qwen3_vl_text", head_dim=16, rope_parameters={**_AXES, "mrope_interleaved": True}),
        {**_QWEN_VISION, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 64},
        {},
    ),
    "llama4": (
        _text("llama4_text"),
        {**_LAYERS, "image_size": 32, "patch_size": 8, "vision_output_dim": 32},
        {},
    ),
    "smolvlm": (_text("llama"), {**_LAYERS, "image_size": 32, "patch_size": 8}, {}),
    "idefics3": (_text("llama"), {**_LAYERS, "image_size": 32, "patch_size": 8}, {}),
    "internvl": (
        _text("qwen2"),
        {**_LAYERS, "image_size": [32, 32], "patch_size": [8, 8]},
        {},
    ),
    "llava_next": (_text("mistral"), {**_CLIP, **_LAYERS, "projection_dim": 32}, {}),
    "llava_onevision": (_text("qwen2"), {**_SIGLIP, **_LAYERS}, {}),
    "aya_vision": (_text("cohere2"), {**_SIGLIP, **_LAYERS}, {}),
    "cohere2_vision": (_text("cohere2"), {**_SIGLIP, **_LAYERS}, {}),
    "lfm2_vl": (
        _text("lfm2"),
        {"model_type": "siglip2_vision_model", **_LAYERS, "num_patches": 16, "patch_size": 8},
        {},
    ),
    "qwen3_vl_moe": (
        {
            **_text("qwen3_moe"),
            "model_type": "qwen3_vl_moe_text",
            "rope_parameters": {**_AXES, "mrope_interleaved": True},
        },
        {**_QWEN_VISION, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 64},
        {},
    ),
    "qwen3_5": (
        _text("qwen3_5_text"),
        {**_QWEN_VISION, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 64},
        {},
    ),
    "qwen3_5_moe": (
        _text("qwen3_5_moe_text"),
        {**_QWEN_VISION, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 64},
        {},
    ),
    "gemma4": (_text("gemma4_text"), {**_LAYERS, "patch_size": 8}, {}),
}


def make(name: str) -> transformers.PreTrainedModel:
    """Return a tiny model in float32 whose every weight matters."""
    text, vision, others = MODELS[name]
    tie = bool(text.get("tie_word_embeddings"))
    config = transformers.AutoConfig.for_model(
        name.partition("-")[0],
        text_config=text,
        vision_config=vision,
        **{"tie_word_embeddings": tie, **others},
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    ).eval()
    randomize(model, 0)
    return model


def _whole(model: transformers.PreTrainedModel) -> torch.nn.Module:
    return model


# Llama 4 asks its text part for what only images have, in this version of transformers.
REFERENCES = {"llama4": lambda model: model.language_model}


def check(name: str, model: transformers.PreTrainedModel, folder: Path, out: Path) -> None:
    mobius.build(folder, execution_provider="cpu", dtype="f32", text_only=True).save(out)
    rng = np.random.default_rng(1)
    # Tokens from 20 on: those below are the ids that the tiny configs have for images.
    rows = [rng.integers(20, 200, length) for length in LENGTHS]
    ours = padded_logits(Decoder(out / "model.onnx"), rows, DECODE_STEPS, side="right")
    for row, logits in zip(rows, ours, strict=True):
        expected = logits_alone(REFERENCES.get(name, _whole)(model), row, DECODE_STEPS)
        assert np.abs(logits - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("name", MODELS)
def test_text_of_the_whole_model(tmp_path: Path, name: str) -> None:
    model = make(name)
    model.save_pretrained(tmp_path / "checkpoint")
    check(name, model, tmp_path / "checkpoint", tmp_path / "out")


def test_c073_every_model_that_is_offered_is_tested() -> None:
    assert {name.partition("-")[0] for name in MODELS} == VERIFIED
    tested = {text["model_type"] for text, _, _ in MODELS.values()}
    assert tested >= ALIASES.keys()


@pytest.mark.parametrize("name", ["gemma3", "llava", "qwen2_vl"])
def test_names_as_they_are_in_memory(tmp_path: Path, name: str) -> None:
    """transformers writes the names that it began with; others write those of today."""
    model, folder = make(name), tmp_path / "checkpoint"
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    assert state.keys() != load_file(file).keys()
    save_file(state, file)
    check(name, model, folder, tmp_path / "out")


def test_a_config_without_text_config(tmp_path: Path) -> None:
    """Qwen2-VL's first checkpoints have the fields of the text part beside those of the whole."""
    model, folder = make("qwen2_vl"), tmp_path / "checkpoint"
    model.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    scaling = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    old = {"rope_theta": rope["rope_theta"], "rope_scaling": scaling, "model_type": "qwen2_vl"}
    path.write_text(json.dumps({**text, **config, **old}))
    check("qwen2_vl", model, folder, tmp_path / "out")


def test_without_the_flag_the_error_names_it(tmp_path: Path) -> None:
    make("gemma3").config.save_pretrained(tmp_path)
    with pytest.raises(CheckpointConfigError, match=r"text_only=True \(--text-only on the command"):
        mobius.build(tmp_path)
