"""`MIXERS`: what mixes tokens in a layer, by `ArchitectureConfig.layer_types`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import FULL_ATTENTION, SLIDING_ATTENTION, ArchitectureConfig
from mobius_components.layers.attention import Attention
from mobius_components.layers.context import LayerContext
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
        attends: Whether it needs `LayerContext.mask`.
    """

    attribute: str
    make: Callable[[ArchitectureConfig, int], nn.Module]
    states: Callable[[ArchitectureConfig, int], tuple[StateSpec, ...]]
    attends: bool = True


_ATTENTION = Mixer("self_attn", Attention, Attention.states)

MIXERS: Mapping[str, Mixer] = MappingProxyType(
    {
        FULL_ATTENTION: _ATTENTION,
        SLIDING_ATTENTION: _ATTENTION,
    }
)
"""The mixer of each entry of `ArchitectureConfig.layer_types`."""


def mixer_of(config: ArchitectureConfig, layer: int) -> Mixer:
    """Return the mixer of a layer."""
    assert config.layer_types is not None  # resolved by the configuration
    return MIXERS[config.layer_types[layer]]


def layer_states(config: ArchitectureConfig, layer: int) -> tuple[StateSpec, ...]:
    """Return the specs of what a layer carries from call to call."""
    return mixer_of(config, layer).states(config, layer)
