"""`FeedForwardMixer`: a feed-forward layer in a mixer's place."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import ArchitectureConfig
from mobius_components.layers.context import LayerContext
from mobius_components.layers.moe import make_feed_forward
from mobius_components.layers.state import LayerState, StateSpec


class FeedForwardMixer(nn.Module):
    """The one part of a layer that mixes no tokens, `[B, S, hidden]` -> the same.

    Source: `transformers` `NemotronHBlock`.
    """

    def __init__(self, config: ArchitectureConfig, layer: int) -> None:
        super().__init__()
        self.mlp = make_feed_forward(config, layer)

    @staticmethod
    def states(config: ArchitectureConfig, layer: int) -> tuple[StateSpec, ...]:
        """Return nothing: there is no state."""
        del config, layer
        return ()

    def forward(
        self, op: OpBuilder, x: ir.Value, context: LayerContext, past: LayerState
    ) -> tuple[Any, LayerState]:
        """Return what is added to the stream."""
        del context
        return self.mlp(op, x), past
