"""`why_not`: what onnxruntime-genai cannot run of a text decoder, as a full sentence.

What it takes was read from, and tried with, onnxruntime-genai 0.18.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

from mobius.decoder_graph import KEY, POSITIONS, TOKENS, VALUE, DecoderGraph
from mobius.generation import GenerationSettings
from mobius_components import ArchitectureConfig
from mobius_eps import RuntimeNames, get_ep
from mobius_eps.runtime_names import GENAI_CPU

__all__ = ["CONV", "RECURRENT", "STATES", "GenaiModel", "layers_with", "why_not"]

CONV, RECURRENT = "conv_state", "recurrent_state"
_INPUTS = (TOKENS, "attention_mask", POSITIONS)
# What a layer carries, and what the runtime calls it.
STATES: Mapping[str, str] = MappingProxyType(
    {KEY: "key", VALUE: "value", CONV: "conv", RECURRENT: "recurrent"}
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenaiModel:
    """What a configuration is written from.

    Attributes:
        filename: The graph's file, relative to the configuration.
        decoder: What the graph says.
        config: The architecture that it was made from.
        settings: Special tokens and search defaults; `None` if they are not known.
        context_length: Longest text.
        names: What the runtimes call the execution provider.
        ep: What Mobius calls it.
        dtype: Element type of the activations.
        provider_options: Options of the execution provider.
        graph_capture: Whether the runtime may capture the graph on the GPU.
    """

    filename: str
    decoder: DecoderGraph
    config: ArchitectureConfig
    settings: GenerationSettings | None
    context_length: int
    names: RuntimeNames
    ep: str
    dtype: ir.DataType | None
    provider_options: Mapping[str, str]
    graph_capture: bool


def why_not(model: GenaiModel) -> str | None:
    """Return why the runtime cannot run the model; `None` if it can."""
    decoder, settings = model.decoder, model.settings
    if model.names.genai is None:
        return f"onnxruntime-genai does not know the execution provider {model.ep!r}."
    if model.names.genai == GENAI_CPU and model.dtype not in get_ep("cpu").dtypes:
        dtype = "an unknown dtype" if model.dtype is None else model.dtype.name
        return f"onnxruntime-genai would run it on the CPU, where ONNX Runtime lacks {dtype}."
    others = [name for name in decoder.inputs if name not in _INPUTS]
    if others:
        return f"onnxruntime-genai does not feed the inputs {', '.join(others)}."
    reason = _why_no_caches(model)
    if reason is not None:
        return reason
    if settings is None:
        return "its special tokens are not known: it was built from a module."
    if not any(token < decoder.vocab_size for token in settings.eos):
        return (
            "neither generation_config.json nor config.json names a token that ends a text, and "
            "onnxruntime-genai would take token 0 for one."
        )
    return None


def layers_with(decoder: DecoderGraph, part: str) -> set[int]:
    """Return the layers that carry a `part`."""
    return {each.layer for each in decoder.caches if each.part == part}


def _has_convolutions_alone(model: GenaiModel) -> bool:
    """Return whether each layer carries a convolution's state, or keys and values, but not both."""
    conv, keys = layers_with(model.decoder, CONV), layers_with(model.decoder, KEY)
    return bool(conv) and not conv & keys and len(conv | keys) == model.config.num_hidden_layers


def _why_no_caches(model: GenaiModel) -> str | None:
    """Return what the runtime cannot keep from call to call."""
    caches = model.decoder.caches
    unknown = sorted({each.part for each in caches} - STATES.keys())
    if unknown:
        return f"onnxruntime-genai does not keep the states {', '.join(unknown)}."
    shapes = {(each.layer, each.part): each.shape for each in caches}
    keys = layers_with(model.decoder, KEY)
    if not keys:
        return "the graph has no cache of keys and values, which onnxruntime-genai needs."
    uneven = [layer for layer in keys if shapes[layer, KEY] != shapes.get((layer, VALUE))]
    if uneven:
        return (
            f"keys and values of layer {min(uneven)} differ in shape, and onnxruntime-genai makes "
            "values as it makes keys."
        )
    recurrent = layers_with(model.decoder, RECURRENT)
    if layers_with(model.decoder, CONV) == recurrent:
        return None
    if not recurrent and _has_convolutions_alone(model):
        return None
    return f"onnxruntime-genai keeps {CONV} and {RECURRENT} only for the same layers."
