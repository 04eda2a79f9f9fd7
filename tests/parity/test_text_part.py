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
from mobius_hf.registry import SAME_FAMILY
from mobius_hf.text_part import ALIASES, REFUSED, VERIFIED

LENGTHS, DECODE_STEPS = (14, 9), 3
TOLERANCE = 3e-5  # of the largest logit

_CLIP = {"model_type": "clip_vision_model", "image_size": 32, "patch_size": 8}
_SIGLIP = {"model_type": "siglip_vision_model", "image_size": 32, "patch_size": 8}
_SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
_LAYERS = {"num_hidden_layers": 1, **_SMALL}
_QWEN_VISION = {"depth": 1, "num_heads": 2, "embed_dim": 32, "hidden_size": 64, "patch_size": 8}
_OUT = {"hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 64}
_IMAGE = {"image_size": 32, "patch_size": 8}
_AXES = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [2, 3, 3]}


def _text(model_type: str, **own: Any) -> dict[str, Any]:
    """Return the tiny config of a language model, as the part of another."""
    return make_config(model_type, **own).to_dict()


def _axes_of_half(model_type: str, **own: Any) -> dict[str, Any]:
    """Return the text part of GLM 4V: half of a head rotates, by one axis or another."""
    rope = {**_AXES, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
    if model_type == "glm4_moe":
        rope["mrope_section"] = [2, 3, 3]
    name = f"{model_type.replace('glm4', 'glm4v')}_text"
    return {**_text(model_type, **own), "model_type": name, "rope_parameters": rope}


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
    "mistral3-mistral4": (
        _text("mistral4"),
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
    "gemma3n": (
        _text("gemma3n_text"),
        {"model_type": "gemma3n_vision", "hidden_size": 32, "vocab_size": 8, "vocab_offset": 211},
        {
            "audio_config": {
                "hidden_size": 32,
                "conf_num_attention_heads": 2,
                "conf_num_hidden_layers": 1,
                "vocab_size": 8,
                "vocab_offset": 219,
                "sscp_conv_channel_size": [8, 4],
            }
        },
    ),
    "voxtral": (
        _text("llama"),
        {},
        {
            "audio_config": {
                "model_type": "voxtral_encoder",
                **_LAYERS,
                "intermediate_size": 128,
                "max_source_positions": 32,
                "num_mel_bins": 8,
            }
        },
    ),
    "kimi_k25": (_text("deepseek_v3"), {**_LAYERS, "patch_size": 8}, {}),
    "glm4v": (
        _axes_of_half("glm4", attention_bias=True, head_dim=16),
        {**_QWEN_VISION, **_OUT, "image_size": 32},
        {},
    ),
    "glm4v_moe": (
        _axes_of_half("glm4_moe", use_qk_norm=False),
        {**_QWEN_VISION, **_OUT, "image_size": 32},
        {},
    ),
    "ovis2": (
        _text("qwen2"),
        {**_LAYERS, **_IMAGE, "num_visual_indicator_tokens": 2, "vocab_size": 16},
        {},
    ),
    "janus": (
        _text("llama"),
        {**_LAYERS, **_IMAGE, "projection_dim": 64, "num_image_tokens": 4, "mlp_ratio": 2.0},
        {
            "vq_config": {
                "embed_dim": 4,
                "num_embeddings": 16,
                "latent_channels": 4,
                "num_patches": 4,
                "base_channels": 32,
                "channel_multiplier": [1, 1],
                "num_res_blocks": 1,
                "projection_dim": 64,
                "image_token_embed_dim": 64,
            }
        },
    ),
}
_PIXTRAL = {"model_type": "pixtral", **_LAYERS, "head_dim": 16}
_TIMM = {"model_type": "timm_wrapper", "architecture": "vit_pe_core_tiny_patch16_384"}
_WHISPER = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
_SAM = {"mlp_dim": 32, "output_channels": 16, "global_attn_indexes": [0], "window_size": 2}
# Those whose text part is a family above, and whose names differ from others' above in little.
FURTHER: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "deepseek_vl": (_text("llama"), {**_SIGLIP, **_LAYERS}, {}),
    "exaone4_5": (_text("exaone4"), {**_QWEN_VISION, **_OUT, "num_key_value_heads": 1}, {}),
    "got_ocr2": (_text("qwen2"), {**_LAYERS, **_IMAGE, **_SAM}, {}),
    "hyperclovax_vision_v2": (_text("hyperclovax"), {**_QWEN_VISION, **_OUT}, {}),
    "idefics2": (
        _text("mistral"),
        {**_LAYERS, **_IMAGE},
        {
            "perceiver_config": {
                "num_key_value_heads": 1,
                "hidden_size": 64,
                "resampler_n_latents": 4,
                "resampler_depth": 1,
                "resampler_n_heads": 2,
                "resampler_head_dim": 8,
            }
        },
    ),
    "lighton_ocr": (_text("qwen3"), _PIXTRAL, {}),
    "llava_next_video": (_text("llama"), {**_CLIP, **_LAYERS, "projection_dim": 32}, {}),
    "minicpmv4_6": (_text("qwen3_5_text"), {**_LAYERS, **_IMAGE}, {}),
    "minicpmv4_7": (_text("qwen3_5_text"), {**_LAYERS, **_IMAGE}, {}),
    "perception_lm": (_text("llama"), {**_TIMM, "model_args": {"embed_dim": 32}}, {}),
    "qianfan_ocr": (
        _text("qwen3"),
        {**_LAYERS, "image_size": [32, 32], "patch_size": [8, 8]},
        {},
    ),
    "qwen2_audio": (
        _text("qwen2", tie_word_embeddings=False),
        {},
        {"audio_config": {**_WHISPER, "num_mel_bins": 8, "max_source_positions": 32}},
    ),
    "qwen3_asr": (_text("qwen3"), {}, {}),
    "video_llama_3": (_text("qwen2"), {**_LAYERS, "patch_size": 8}, {}),
    "video_llava": (_text("llama"), {**_CLIP, **_LAYERS, "projection_dim": 32}, {}),
    "vipllava": (
        _text("llama"),
        {**_CLIP, **_LAYERS, "num_hidden_layers": 12, "projection_dim": 32},
        {},
    ),
}
# transformers writes these with a name of another part in it, and not as they are published.
_AS_IN_MEMORY = frozenset({"kimi_k25", "qianfan_ocr"})


class Tower(torch.nn.Linear):
    """Stands for a part that needs the package timm, and that text does not go through."""

    def __init__(self) -> None:
        super().__init__(4, 4)


_make_part = transformers.AutoModel.from_config.__func__


def _part(cls: Any, config: Any, **options: Any) -> torch.nn.Module:
    if config.model_type in ("gemma3n_vision", "timm_wrapper"):
        return Tower()
    return _make_part(cls, config, **options)


def make(name: str) -> transformers.PreTrainedModel:
    """Return a tiny model in float32 whose every weight matters."""
    text, vision, others = (MODELS | FURTHER)[name]
    tie = bool(text.get("tie_word_embeddings"))
    config = transformers.AutoConfig.for_model(
        name.partition("-")[0],
        text_config=text,
        **({"vision_config": vision} if vision else {}),
        **{"tie_word_embeddings": tie, **others},
    )
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers.AutoModel, "from_config", classmethod(_part))
        model = transformers.AutoModelForMultimodalLM.from_config(
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


@pytest.mark.parametrize(
    "name", [*MODELS, *(pytest.param(each, marks=pytest.mark.slow) for each in FURTHER)]
)
def test_text_of_the_whole_model(tmp_path: Path, name: str) -> None:
    model = make(name)
    model.save_pretrained(tmp_path / "checkpoint")
    if name in _AS_IN_MEMORY:
        save_file(model.state_dict(), tmp_path / "checkpoint" / "model.safetensors")
    check(name, model, tmp_path / "checkpoint", tmp_path / "out")


def test_c073_every_model_that_is_offered_is_tested() -> None:
    assert {name.partition("-")[0] for name in MODELS | FURTHER} == VERIFIED
    tested = {text["model_type"] for text, _, _ in MODELS.values()}
    assert tested >= ALIASES.keys() - SAME_FAMILY.keys()


def test_every_model_that_is_offered_is_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    assert not [name for name in VERIFIED | REFUSED.keys() if f"`{name}`" not in page]


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
