"""The decoder layer of Gemma 3n: AltUp around attention and feed-forward, and an input of its own.

Source: `transformers` `Gemma3nTextDecoderLayer`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import ArchitectureConfig
from mobius_components.layers.altup import AltUp, stream_of
from mobius_components.layers.context import LayerContext
from mobius_components.layers.decoder import Attend, SandwichLayer
from mobius_components.layers.layer_input import LayerInput
from mobius_components.layers.linear import Linear
from mobius_components.layers.norm import RMSNorm
from mobius_components.layers.state import LayerState
from mobius_components.parameter import Parameter


class Laurel(nn.Module):
    """A learned residual of low rank, `x + norm(right(left(x)))`."""

    def __init__(self, config: ArchitectureConfig, rank: int) -> None:
        super().__init__()
        self.linear_left = Linear(config.hidden_size, rank)
        self.linear_right = Linear(rank, config.hidden_size)
        self.post_laurel_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, op: OpBuilder, x: ir.Value) -> Any:
        """Return the residual of `x`, `[B, S, hidden]`."""
        low = self.linear_right(op, self.linear_left(op, x))
        return op.Add(x, self.post_laurel_norm(op, low))


class Scale(nn.Module):
    """A factor for each column."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = Parameter([size])

    def forward(self, op: OpBuilder, x: ir.Value) -> Any:
        """Return `x`, `[B, S, size]`, times the factors."""
        return op.Mul(x, self.weight)


class Gemma3nLayer(SandwichLayer):
    """Maps streams, `[B, S, streams, hidden]`."""

    def __init__(self, config: ArchitectureConfig, layer: int) -> None:
        super().__init__(config, layer)
        assert config.altup is not None  # the configuration says that this layout needs it
        altup = config.altup
        self.altup = AltUp(config, altup)
        self.output_scale = Scale(config.hidden_size) if altup.correct_scale else None
        self.laurel = Laurel(config, altup.laurel_rank)
        self.layer_input = LayerInput(config)
        self._count, self._active = altup.num_inputs, altup.active

    def forward(
        self, op: OpBuilder, hidden_states: ir.Value, context: LayerContext, past: LayerState
    ) -> tuple[Any, LayerState]:
        """Return the streams after this layer, and the state after it."""
        streams, present = super().forward(op, hidden_states, context, past)
        assert context.layer_input is not None  # a model of such layers makes one for each
        output = stream_of(op, streams, self._active)
        if self.output_scale is not None:
            output = self.output_scale(op, output)
        update = self.layer_input(op, output, context.layer_input)
        # The first stream does not get it.
        dtype = hidden_states.dtype or ir.DataType.FLOAT
        others = np.arange(self._count)[:, None] > 0
        mask = op.initializer(ir.tensor(others.astype(dtype.numpy()), dtype=dtype), name="others")
        return op.Add(streams, op.Mul(op.Unsqueeze(update, [2]), mask)), present

    def arrange(self, op: OpBuilder, x: ir.Value, attend: Attend) -> Any:
        """Return the streams after attention and feed-forward."""
        predictions = self.altup(op, x)
        active = stream_of(op, predictions, self._active)
        normed = self._norm("input_layernorm", op, active)
        attended = self._norm("post_attention_layernorm", op, attend(normed))
        both = op.Add(op.Add(active, attended), self.laurel(op, normed))
        stream = op.Mul(both, 1.0 / math.sqrt(2.0))
        fed = self.mlp(op, self._norm("pre_feedforward_layernorm", op, stream))
        fed = self._norm("post_feedforward_layernorm", op, fed)
        return self.altup(op, predictions, op.Add(stream, fed))
