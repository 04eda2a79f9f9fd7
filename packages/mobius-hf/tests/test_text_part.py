"""The text part of a multimodal checkpoint: its config, and the names of its tensors.

Case C073.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from mobius.sources import SourceOptions
from mobius_hf.errors import CheckpointConfigError
from mobius_hf.source import source
from mobius_hf.text_part import is_composite, text_config, text_tensors

PATH = Path("config.json")
LLAVA: dict[str, Any] = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "torch_dtype": "float16",
    "pad_token_id": 32001,
    "image_token_index": 32000,
    "text_config": {
        "_name_or_path": "somewhere",
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "max_position_embeddings": 4096,
        "vocab_size": 32064,
    },
    "vision_config": {"model_type": "clip_vision_model"},
}


def test_c073_a_partial_text_config_is_completed_by_its_class() -> None:
    """Files of that time leave out whatever equals the class's default."""
    text = text_config(LLAVA, PATH)
    assert text["model_type"] == "llama"
    assert (text["hidden_size"], text["num_hidden_layers"]) == (4096, 32)
    assert (text["vocab_size"], text["max_position_embeddings"]) == (32064, 4096)
    assert text["torch_dtype"] == "float16"
    assert text["pad_token_id"] == 32001
    assert "architectures" not in text


@pytest.mark.parametrize(
    ("whole", "part", "tied"),
    [(True, False, True), (False, True, False), (None, True, True), (None, None, False)],
)
def test_c054_the_whole_models_config_decides_about_the_head(
    whole: bool | None, part: bool | None, tied: bool
) -> None:
    text = {**LLAVA["text_config"], **({} if part is None else {"tie_word_embeddings": part})}
    raw = {**LLAVA, "text_config": text}
    if whole is not None:
        raw["tie_word_embeddings"] = whole
    assert text_config(raw, PATH)["tie_word_embeddings"] is tied


def test_c043_sections_of_positions_are_one_for_text() -> None:
    rope = {"type": "mrope", "mrope_section": [16, 24, 24]}
    raw = {
        "model_type": "qwen2_vl",
        "hidden_size": 256,
        "num_attention_heads": 2,
        "rope_theta": 1e6,
        "rope_scaling": rope,
        "vision_config": {"depth": 1},
    }
    text = text_config(raw, PATH)
    assert text["model_type"] == "qwen2"
    assert text["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e6}
    assert not text.keys() & {"rope_theta", "rope_scaling"}
    assert text["hidden_size"] == 256


def test_defaults_that_differ_from_the_plain_model_are_kept() -> None:
    """Qwen2-VL's text part has another epsilon by default than Qwen2."""
    import transformers

    whole = transformers.Qwen2VLConfig().get_text_config()
    text = text_config({"model_type": "qwen2_vl", "vision_config": {"depth": 1}}, PATH)
    assert text["rms_norm_eps"] == whole.rms_norm_eps != transformers.Qwen2Config().rms_norm_eps


def test_other_models_are_refused() -> None:
    raw = {**LLAVA, "model_type": "florence2"}
    with pytest.raises(CheckpointConfigError, match=r"part of a 'florence2' .* Known: aya_vision"):
        text_config(raw, PATH)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [("paligemma", "see those behind them"), ("granite_speech", "divided by logits_scaling")],
)
def test_a_text_part_that_computes_something_else(model_type: str, reason: str) -> None:
    with pytest.raises(CheckpointConfigError, match=f"does not compute .* {reason}"):
        text_config({**LLAVA, "model_type": model_type}, PATH)


def test_a_config_that_transformers_refuses() -> None:
    raw = {**LLAVA, "text_config": {"model_type": "llama", "hidden_size": "wide"}}
    with pytest.raises(CheckpointConfigError, match=r"transformers refuses config\.json as a"):
        text_config(raw, PATH)


def test_messages_say_where_the_field_is(write_model: Any) -> None:
    text = {**LLAVA["text_config"], "num_attention_heads": 32, "num_key_value_heads": 5}
    folder = str(write_model({**LLAVA, "text_config": text}))
    with pytest.raises(
        CheckpointConfigError, match=r"config\.json/text_config: num_key_value_heads"
    ):
        source.open(folder, SourceOptions(text_only=True))


@pytest.mark.parametrize(
    ("raw", "composite"),
    [
        ({"model_type": "llama", "rope_scaling": {}}, False),
        ({"text_config": {}}, True),
        ({"vision_config": {}}, True),
        ({"vision_config": None}, False),
    ],
)
def test_is_composite(raw: dict[str, Any], composite: bool) -> None:
    assert is_composite(raw) is composite


NAMES = {
    "model.language_model.layers.0.mlp.up_proj.weight": "model.layers.0.mlp.up_proj.weight",
    "language_model.model.norm.weight": "model.norm.weight",
    "language_model.lm_head.weight": "lm_head.weight",
    "model.text_model.embed_tokens.weight": "model.embed_tokens.weight",
    "lm_head.weight": "lm_head.weight",
    "model.layers.3.input_layernorm.weight": "model.layers.3.input_layernorm.weight",
    "visual.blocks.0.attn.qkv.weight": None,
    "model.visual.merger.ln_q.weight": None,
    "vision_tower.vision_model.embeddings.patch_embedding.weight": None,
    "model.vision_tower.encoder.layers.0.norm1.weight": None,
    "model.multi_modal_projector.linear_1.weight": None,
    "vision_model.class_embedding": None,
    "audio_tower.layers.0.fc1.weight": None,
    "image_newline": None,
    "model.visual_embeddings_table.weight": None,
    "image_tower.encoder.layers.0.mlp.fc1.weight": None,
    "video_tower.embeddings.class_embedding": None,
    "model.aligner.fc1.weight": None,
    "model.generation_head.proj_out.weight": None,
    "model.vqmodel.quantize.weight": None,
    "model.merger.mlp.0.linear_1.weight": None,
    "model.projector.readout.0.weight": None,
    "mlp1.0.weight": None,
    "model.connector.modality_projection.proj.weight": None,
    # Of no known part: kept, so that binding reports it.
    "model.visualizer.weight": "model.visualizer.weight",
    "adapter.weight": "adapter.weight",
}


@pytest.mark.parametrize(("stored", "ours"), NAMES.items())
def test_names(stored: str, ours: str | None) -> None:
    tensor = ir.tensor(np.ones(1, np.float32))
    assert list(text_tensors({stored: tensor})) == ([] if ours is None else [ours])


def test_what_is_left_out_is_told(caplog: pytest.LogCaptureFixture) -> None:
    tensor = ir.tensor(np.ones(1, np.float32))
    with caplog.at_level(logging.INFO):
        text_tensors(dict.fromkeys(NAMES, tensor))
    assert "1 of model.multi_modal_projector" in caplog.text
    assert "1 of visual" in caplog.text


def test_a_language_model_may_be_asked_for_its_text_part(
    write_model: Any, tiny_llama: Any, arrays: Any
) -> None:
    folder = str(write_model(tiny_llama, arrays))
    plain = source.open(folder, SourceOptions())
    asked = source.open(folder, SourceOptions(text_only=True))
    assert asked.config == plain.config
    assert asked.load_weights().keys() == plain.load_weights().keys()
