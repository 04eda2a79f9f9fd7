"""Feed-forward layers: `[B, S, hidden]` -> `[B, S, hidden]`."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.activations import ACTIVATIONS
from mobius_components.config import ArchitectureConfig
from mobius_components.layers.linear import Linear


class GatedMLP(nn.Module):
    """`down(act(gate(x)) * up(x))`. Source: `transformers` `LlamaMLP`."""

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = Linear(width, inner, bias=bias)
        self.up_proj = Linear(width, inner, bias=bias)
        self.down_proj = Linear(inner, width, bias=bias)
        self._act = ACTIVATIONS[config.hidden_act]

    def forward(self, op: OpBuilder, x: ir.Value) -> Any:
        """Return the feed-forward output of `x`."""
        return self.down_proj(op, op.Mul(self._act(op, self.gate_proj(op, x)), self.up_proj(op, x)))


class MLP(nn.Module):
    """`down(act(up(x)))`. Source: `transformers` `Starcoder2MLP` and its like."""

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.up_proj = Linear(width, inner, bias=bias)
        self.down_proj = Linear(inner, width, bias=bias)
        self._act = ACTIVATIONS[config.hidden_act]

    def forward(self, op: OpBuilder, x: ir.Value) -> Any:
        """Return the feed-forward output of `x`."""
        return self.down_proj(op, self._act(op, self.up_proj(op, x)))


def make_mlp(config: ArchitectureConfig) -> nn.Module:
    """Return the feed-forward layer that the configuration asks for."""
    return GatedMLP(config) if config.mlp_gated else MLP(config)
