"""`genai_config`: a text decoder in, the `genai_config.json` of onnxruntime-genai out.

What the runtime takes was read from, and tried with, onnxruntime-genai 0.18. Caches of sliding
layers hold every token, as their graphs expect, so there is no `sliding_window` entry: it would
make the runtime allocate buffers of the window's size.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from mobius.decoder_graph import KEY, LOGITS
from mobius.genai_support import CONV, RECURRENT, STATES, GenaiModel, layers_with, why_not
from mobius.generation import Setting
from mobius_eps.runtime_names import GENAI_CPU

__all__ = ["GENAI_CONFIG", "GenaiRefusal", "genai_config", "to_json"]

GENAI_CONFIG = "genai_config.json"

GENERIC = "decoder"
CONVOLUTIONS = "lfm2"
"""The runtime's type for layers that carry nothing but a convolution's state."""
# Families that the runtime has a name of its own for. "phi3" matters: at 4,097 tokens the runtime
# computes the cache again, as transformers does, because Phi 3's long rotary table begins there.
# "gpt2" is left out: the runtime wants the combined cache of old exports for it.
MODEL_TYPES: Mapping[str, str] = MappingProxyType(
    {
        **{
            name: name
            for name in (
                "ernie4_5",
                "gemma",
                "gemma2",
                "gemma3_text",
                "granite",
                "llama",
                "mistral",
                "nemotron",
                "olmo",
                "phi",
                "phi3",
                "phimoe",
                "qwen2",
                "qwen3",
                "smollm3",
            )
        },
        "gpt_oss": "gptoss",
        "hunyuan_v1_dense": "hunyuandensev1",
    }
)
"""HuggingFace `model_type` -> the runtime's; it runs every other decoder as `GENERIC`."""

# What the runtime takes for given is written out, where it differs from transformers' defaults too.
_SEARCH_DEFAULTS: Mapping[str, Setting] = MappingProxyType(
    {
        "do_sample": False,
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
        "repetition_penalty": 1.0,
        "num_beams": 1,
    }
)

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class GenaiRefusal:
    """Why onnxruntime-genai cannot run a package, as a full sentence."""

    reason: str


def genai_config(model: GenaiModel) -> dict[str, Any] | GenaiRefusal:
    """Return the configuration, or why the runtime cannot run the model."""
    reason = why_not(model)
    if reason is not None:
        return GenaiRefusal(reason)
    settings, decoder, config = model.settings, model.decoder, model.config
    assert settings is not None  # or it would have been refused
    eos = _inside(settings.eos, decoder.vocab_size, "eos_token_id")
    bos = _inside(
        [] if settings.bos is None else [settings.bos], decoder.vocab_size, "bos_token_id"
    )
    pad = _inside(
        [] if settings.pad is None else [settings.pad], decoder.vocab_size, "pad_token_id"
    )
    layer_types = _layer_types(model)
    parts = {each.part for each in decoder.caches}
    return {
        "model": {
            "type": CONVOLUTIONS if layer_types else MODEL_TYPES.get(config.model_type, GENERIC),
            "context_length": model.context_length,
            "vocab_size": decoder.vocab_size,
            **({"bos_token_id": bos[0]} if bos else {}),
            "eos_token_id": list(eos),
            # One number, which marks what is not text: a token of its own where the model has one.
            "pad_token_id": (pad or eos)[0],
            "decoder": {
                "filename": model.filename,
                "session_options": _session_options(model),
                "hidden_size": config.hidden_size,
                "num_hidden_layers": config.num_hidden_layers,
                "num_attention_heads": config.num_attention_heads,
                **_cache_sizes(model),
                **layer_types,
                "inputs": {
                    **{name: name for name in decoder.inputs},
                    **{
                        f"past_{kind}_names": f"past_key_values.%d.{part}"
                        for part, kind in STATES.items()
                        if part in parts
                    },
                },
                "outputs": {
                    LOGITS: LOGITS,
                    **{
                        f"present_{kind}_names": f"present.%d.{part}"
                        for part, kind in STATES.items()
                        if part in parts
                    },
                },
            },
        },
        "search": {
            **_SEARCH_DEFAULTS,
            **settings.search,
            "max_length": model.context_length,
            "past_present_share_buffer": decoder.shared_cache,
        },
    }


def to_json(config: Mapping[str, Any]) -> str:
    """Return the text of `genai_config.json`; equal configurations give equal text."""
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def _inside(tokens: Iterable[int], vocab_size: int, name: str) -> tuple[int, ...]:
    """Return the tokens that there are: the runtime refuses others, which never come anyway."""
    tokens = tuple(tokens)
    outside = [token for token in tokens if token >= vocab_size]
    if outside:
        _logger.warning(
            "%s: left out %s, as the vocabulary ends at %d", name, outside, vocab_size - 1
        )
    return tuple(token for token in tokens if token < vocab_size)


def _cache_sizes(model: GenaiModel) -> dict[str, int]:
    """Return heads and width of the first layer's keys; the runtime reads the others' itself."""
    key = next(each for each in model.decoder.caches if each.part == KEY)
    sizes = zip(("num_key_value_heads", "head_size"), key.shape[1::2], strict=True)
    # What the graph leaves open, the architecture says.
    known = {"num_key_value_heads": model.config.kv_heads, "head_size": model.config.head_size}
    return {**known, **{name: size for name, size in sizes if isinstance(size, int)}}


def _layer_types(model: GenaiModel) -> dict[str, list[str]]:
    """Return the entry that says which layers are convolutions; empty where none is alone."""
    conv = layers_with(model.decoder, CONV)
    if not conv or layers_with(model.decoder, RECURRENT):
        return {}
    layers = range(model.config.num_hidden_layers)
    return {"layer_types": ["conv" if layer in conv else "full_attention" for layer in layers]}


def _session_options(model: GenaiModel) -> dict[str, Any]:
    options: dict[str, Any] = {"log_id": "onnxruntime-genai"}
    if model.decoder.loops:
        # Memory planned for one length would be taken for another within a loop.
        options["enable_mem_pattern"] = False
    return {**options, "provider_options": _provider_options(model)}


def _provider_options(model: GenaiModel) -> list[dict[str, dict[str, str]]]:
    names = model.names
    if names.genai is None or names.genai == GENAI_CPU:
        return []
    options = dict(model.provider_options)
    if names.genai_graph_capture is not None:
        # The runtime captures only what writes to buffers that stay where they are.
        capture = model.graph_capture and model.decoder.shared_cache
        options[names.genai_graph_capture] = str(int(capture))
    return [{names.genai: options}]
