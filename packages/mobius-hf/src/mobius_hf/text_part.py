"""The text part of a multimodal checkpoint: its own config, and which tensors are its.

A model for images or sound has the config of a language model inside its own, and the tensors of
one under a prefix. For text alone it computes what that language model computes.
"""

from __future__ import annotations

import copy
import logging
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx_ir as ir

from mobius_hf.errors import CheckpointConfigError
from mobius_hf.transformers_config import find_config_class, refused_by_transformers

_logger = logging.getLogger(__name__)

# Text parts that transformers has only inside a larger model -> the model that they are. Most have
# a rotary embedding that turns each part of a head by the position along one of three axes; tokens
# of text have the same position along all three.
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "glm4v_moe_text": "glm4_moe",
        "glm4v_text": "glm4",
        "kimi_k2": "deepseek_v3",
        "qwen2_vl_text": "qwen2",
        "qwen2_5_vl_text": "qwen2",
        "qwen3_vl_text": "qwen3",
        "qwen3_vl_moe_text": "qwen3_moe",
    }
)
# Models whose text part was compared with transformers, whole model and text part alike.
VERIFIED = frozenset(
    {
        "aya_vision",
        "cohere2_vision",
        "deepseek_vl",
        "exaone4_5",
        "gemma3",
        "gemma3n",
        "gemma4",
        "glm4v",
        "glm4v_moe",
        "got_ocr2",
        "hyperclovax_vision_v2",
        "idefics2",
        "idefics3",
        "internvl",
        "janus",
        "kimi_k25",
        "lfm2_vl",
        "lighton_ocr",
        "llama4",
        "llava",
        "llava_next",
        "llava_next_video",
        "llava_onevision",
        "minicpmv4_6",
        "minicpmv4_7",
        "mistral3",
        "ovis2",
        "perception_lm",
        "qianfan_ocr",
        "qwen2_5_vl",
        "qwen2_audio",
        "qwen2_vl",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_asr",
        "qwen3_vl",
        "qwen3_vl_moe",
        "smolvlm",
        "video_llama_3",
        "video_llava",
        "vipllava",
        "voxtral",
    }
)
# Models whose text part is known to compute something else.
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "granite_speech": "its logits are not divided by logits_scaling, as its text part's are",
        "paligemma": "tokens of its prompt see those behind them too, and a decoder's do not",
    }
)
_AXES = frozenset({"mrope_section", "mrope_interleaved", "type"})
_OTHER_CONFIGS = ("vision_config", "audio_config", "vision_encoder_config")
# Of the whole model, not of what its text part computes.
_ASIDE = frozenset({"_name_or_path", "architectures", "is_composition", "transformers_version"})
_ROPE = frozenset({"rope_theta", "rope_scaling", "rope_parameters"})
_SHARED = ("dtype", "torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id")

_PREFIX = re.compile(r"^(?:model\.language_model|language_model|model\.text_model|text_model)\.")
_OTHER_PARTS = re.compile(
    r"^(?:model\.)?(?:vision_\w+|visual(?:_\w+)?|image_newline|image_tower|video_tower"
    r"|multi_modal_projector|mm_projector|projector|language_projection|aligner|merger|mlp1|mlp_AR|qformer"
    r"|query_tokens|connector|audio_\w+|encoder|embed_vision|embed_audio|generation_\w+|vqmodel)"
    r"(?=\.|$)"
)


def is_composite(raw: Mapping[str, Any]) -> bool:
    """Return whether the config `raw` is of a model that has more than a language model."""
    nested = isinstance(raw.get("text_config"), Mapping)
    return nested or any(isinstance(raw.get(name), Mapping) for name in _OTHER_CONFIGS)


def text_config(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the config of the text part of `raw`, as a language model's config.json would be.

    What the file leaves out is what transformers takes it to be for the whole model.

    Args:
        raw: Content of `config.json`.
        path: Its path, for messages.

    Raises:
        CheckpointConfigError: if the model is not one whose text part is known to be what it
            computes for text.
    """
    if reason := REFUSED.get(str(raw.get("model_type"))):
        raise CheckpointConfigError(
            f"{path}: the text part of a {raw['model_type']!r} model does not compute what the "
            f"whole model computes for text: {reason}. Build a model that is text alone."
        )
    if raw.get("model_type") not in VERIFIED:
        raise CheckpointConfigError(
            f"{path}: the text part of a {raw.get('model_type')!r} model is not known to compute "
            f"what the whole model computes for text. Known: {', '.join(sorted(VERIFIED))}."
        )
    nested = raw.get("text_config")
    resolved = _resolved(raw, path)
    if isinstance(nested, Mapping):
        stated = dict(nested)
    else:  # written before text parts had a config of their own
        stated = {name: raw[name] for name in resolved.keys() & raw.keys() - {"model_type"}}
    own_type = str(stated.get("model_type") or resolved["model_type"])
    text = {name: value for name, value in stated.items() if name not in _ASIDE}
    text["model_type"] = ALIASES.get(own_type, own_type)
    for name, value in resolved.items():
        if value is not None and name not in _ASIDE | _ROPE and text.get(name) is None:
            text[name] = value
    if own_type in ALIASES:
        text = {name: value for name, value in text.items() if name not in _ROPE}
        text["rope_parameters"] = _along_one_axis(resolved["rope_parameters"])
    for name in _SHARED:
        if text.get(name) is None and raw.get(name) is not None:
            text[name] = raw[name]
    # The head is the whole model's, so that its config decides; its default does not: families
    # have changed that over time, while the text part's is that of its family.
    if raw.get("tie_word_embeddings") is not None:
        text["tie_word_embeddings"] = raw["tie_word_embeddings"]
    return text


def _resolved(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the text part's fields as transformers sees them.

    Raises:
        CheckpointConfigError: if it refuses them.
    """
    values = {name: value for name, value in raw.items() if name != "quantization_config"}
    config_class = find_config_class(raw["model_type"])
    try:
        whole = config_class.from_dict(copy.deepcopy(values))
        return dict(whole.get_text_config().to_dict())
    except Exception as error:  # whatever a config class of transformers raises
        raise refused_by_transformers(config_class, values, path, error) from error


def _along_one_axis(parameters: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in parameters.items() if name not in _AXES}
    kind = kept.get("rope_type", "default")
    return {**kept, "rope_type": "default" if kind == "mrope" else kind}


def text_tensors(checkpoint: Mapping[str, ir.TensorProtocol]) -> dict[str, ir.TensorProtocol]:
    """Return the tensors of the text part, named as in a checkpoint of a language model.

    Those of the other parts are left out, and the log says how many of which. A tensor that is of
    no known part keeps its name, so that binding reports it.
    """
    tensors: dict[str, ir.TensorProtocol] = {}
    left_out: Counter[str] = Counter()
    for name, tensor in checkpoint.items():
        other = _OTHER_PARTS.match(name)
        if other is not None:
            left_out[other[0]] += 1
            continue
        rest = _PREFIX.sub("", name)
        # `language_model.model.layers`, `language_model.lm_head`; `model.language_model.layers`.
        inner = rest == name or rest.startswith(("model.", "lm_head."))
        tensors[rest if inner else f"model.{rest}"] = tensor
    if left_out:
        listed = ", ".join(f"{count} of {part}" for part, count in sorted(left_out.items()))
        _logger.info("Only the text part is built. Tensors that it leaves out: %s", listed)
    return tensors
