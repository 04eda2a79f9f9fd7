"""`MIXERS`: what mixes tokens in a layer, by `ArchitectureConfig.layer_types`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import (
    ATTENTION_BESIDE_MAMBA2,
    CHUNKED_ATTENTION,
    FEED_FORWARD,
    FULL_ATTENTION,
    GATED_DELTA,
    LATENT_ATTENTION,
    LIGHTNING_ATTENTION,
    MAMBA,
    MAMBA2,
    RG_LRU,
    SHARED_BLOCK_BEFORE_MAMBA2,
    SHORT_CONV,
    SLIDING_ATTENTION,
    ArchitectureConfig,
)
from mobius_components.layers.attention import Attention
from mobius_components.layers.attention_beside_mamba2 import AttentionBesideMamba2
from mobius_components.layers.context import LayerContext
from mobius_components.layers.feed_forward_mixer import FeedForwardMixer
from mobius_components.layers.gated_delta import GatedDelta
from mobius_components.layers.latent_attention import LatentAttention
from mobius_components.layers.lightning_attention import LightningAttention
from mobius_components.layers.mamba import Mamba
from mobius_components.layers.mamba2 import Mamba2
from mobius_components.layers.rg_lru import RgLru
from mobius_components.layers.shared_attention import SharedAttention
from mobius_components.layers.shared_block import SharedBlockBeforeMamba2
from mobius_components.layers.short_conv import ShortConv
from mobius_components.layers.state import LayerState, StateSpec


class MixerModule(Protocol):
    """A module that mixes tokens: `[B, S, hidden]` and a state to `[B, S, hidden]` and a state."""

    def __call__(
        self, op: OpBuilder, x: ir.Value, context: LayerContext, past: LayerState
    ) -> tuple[Any, LayerState]:
        """Return what is added to the stream for `x`, and the state after it."""
        ...


@dataclasses.dataclass(frozen=True)
class Mixer:
    """One kind of layer.

    Attributes:
        attribute: Name of the module within its layer, the first part of its parameters' names.
        make: Configuration and index of the layer -> a `MixerModule`.
        states: Configuration and index of the layer -> what the layer carries.
        attends: Whether it needs `LayerContext.mask`, and tokens in the order that they are given.
        recurs: Whether it needs `LayerContext.tokens`; and, if it does not attend, the real tokens
            in front.
        norms_input: Whether it is given the normed stream; else it is given the stream itself.
    """

    attribute: str
    make: Callable[[ArchitectureConfig, int], nn.Module]
    states: Callable[[ArchitectureConfig, int], tuple[StateSpec, ...]]
    attends: bool = True
    recurs: bool = False
    norms_input: bool = True


def _recurrent(attribute: str, kind: Any) -> Mixer:
    return Mixer(attribute, kind, kind.states, attends=False, recurs=True)


_ATTENTION = Mixer("self_attn", Attention, Attention.states)
_SHARED_ATTENTION = Mixer("self_attn", SharedAttention, SharedAttention.states)

MIXERS: Mapping[str, Mixer] = MappingProxyType(
    {
        FULL_ATTENTION: _ATTENTION,
        SLIDING_ATTENTION: _ATTENTION,
        CHUNKED_ATTENTION: _ATTENTION,
        LATENT_ATTENTION: Mixer("self_attn", LatentAttention, LatentAttention.states),
        SHORT_CONV: _recurrent("conv", ShortConv),
        GATED_DELTA: _recurrent("linear_attn", GatedDelta),
        LIGHTNING_ATTENTION: _recurrent("self_attn", LightningAttention),
        MAMBA: _recurrent("mamba", Mamba),
        MAMBA2: _recurrent("mamba", Mamba2),
        RG_LRU: _recurrent("temporal_block", RgLru),
        ATTENTION_BESIDE_MAMBA2: Mixer(
            "mixer", AttentionBesideMamba2, AttentionBesideMamba2.states, recurs=True
        ),
        SHARED_BLOCK_BEFORE_MAMBA2: Mixer(
            "mixer",
            SharedBlockBeforeMamba2,
            SharedBlockBeforeMamba2.states,
            recurs=True,
            norms_input=False,
        ),
        FEED_FORWARD: Mixer("mixer", FeedForwardMixer, FeedForwardMixer.states, attends=False),
    }
)
"""The mixer of each entry of `ArchitectureConfig.layer_types`."""


def mixer_of(config: ArchitectureConfig, layer: int) -> Mixer:
    """Return the mixer of a layer."""
    assert config.layer_types is not None  # resolved by the configuration
    if config.kv_source(layer) is not None:
        return _SHARED_ATTENTION
    return MIXERS[config.layer_types[layer]]


def layer_states(config: ArchitectureConfig, layer: int) -> tuple[StateSpec, ...]:
    """Return the specs of what a layer carries from call to call."""
    return mixer_of(config, layer).states(config, layer)
