"""`LayerInput`: what a layer makes of its own input, to be added to its stream."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.activations import ACTIVATIONS
from mobius_components.config import ArchitectureConfig
from mobius_components.layers.linear import Linear
from mobius_components.layers.norm import RMSNorm


class LayerInput(nn.Module):
    """`norm(project(act(gate(stream)) * input))`.

    Source: `transformers` `Gemma3nTextDecoderLayer`, `Gemma4TextDecoderLayer`.
    """

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        assert config.per_layer_input is not None  # a model with such inputs says how wide they are
        hidden, size = config.hidden_size, config.per_layer_input.hidden_size
        self.per_layer_input_gate = Linear(hidden, size)
        self.per_layer_projection = Linear(size, hidden)
        self.post_per_layer_input_norm = RMSNorm(hidden, config.rms_norm_eps)
        self._activate = ACTIVATIONS[config.hidden_act]

    def forward(self, op: OpBuilder, stream: ir.Value, layer_input: ir.Value) -> Any:
        """Return `[B, S, hidden]` for `stream`, `[B, S, hidden]`, and an input `[B, S, size]`."""
        gated = op.Mul(self._activate(op, self.per_layer_input_gate(op, stream)), layer_input)
        return self.post_per_layer_input_norm(op, self.per_layer_projection(op, gated))
