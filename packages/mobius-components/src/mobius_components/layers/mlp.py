"""Feed-forward layers: `[B, S, hidden]` -> `[B, S, hidden]`."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.activations import ACTIVATIONS
from mobius_components.config import ArchitectureConfig
from mobius_components.layers.linear import Linear
from mobius_components.layers.scaled import scaled
from mobius_components.multiplier_config import MultiplierConfig
from mobius_components.parameter import Parameter


class XIELU(nn.Module):
    """xIELU: a parabola above zero, an exponential below, both with trained curvature.

    Source: https://arxiv.org/abs/2411.13010, `transformers` `XIELUActivation`, whose checkpoints
    store the two curvatures before softplus; here they are what softplus makes of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p = Parameter([1])
        self.alpha_n = Parameter([1])
        self.beta = Parameter([])
        self.eps = Parameter([])

    def forward(self, op: OpBuilder, x: ir.Value) -> Any:
        """Return `x` activated."""
        above = op.Mul(op.Mul(x, x), self.alpha_p)
        curve = op.Sub(op.Sub(op.Exp(op.Min(x, self.eps)), 1.0), x)
        below = op.Mul(curve, op.Add(self.alpha_n, self.beta))
        return op.Add(op.Where(op.Greater(x, 0.0), above, below), op.Mul(x, self.beta))


def _make_activation(config: ArchitectureConfig) -> Any:
    """Return what maps a builder and a value to the activated value."""
    return XIELU() if config.hidden_act == "xielu" else ACTIVATIONS[config.hidden_act]


class GatedMLP(nn.Module):
    """`down(act(gate(x)) * up(x))`. Source: `transformers` `LlamaMLP`."""

    def __init__(self, config: ArchitectureConfig, intermediate_size: int | None = None) -> None:
        super().__init__()
        width, bias = config.hidden_size, config.mlp_bias
        inner = intermediate_size or config.intermediate_size
        self.gate_proj = Linear(width, inner, bias=bias)
        self.up_proj = Linear(width, inner, bias=bias)
        self.down_proj = Linear(inner, width, bias=bias)
        self.act_fn = _make_activation(config)
        self._factors = config.multipliers or MultiplierConfig()

    def forward(self, op: OpBuilder, x: ir.Value) -> Any:
        """Return the feed-forward output of `x`."""
        gate = scaled(op, self.gate_proj(op, x), self._factors.mlp_gate)
        fed = self.down_proj(op, op.Mul(self.act_fn(op, gate), self.up_proj(op, x)))
        return scaled(op, fed, self._factors.mlp_output)


class MLP(nn.Module):
    """`down(act(up(x)))`. Source: `transformers` `Starcoder2MLP` and its like."""

    def __init__(self, config: ArchitectureConfig, intermediate_size: int | None = None) -> None:
        super().__init__()
        width, bias = config.hidden_size, config.mlp_bias
        inner = intermediate_size or config.intermediate_size
        self.up_proj = Linear(width, inner, bias=bias)
        self.down_proj = Linear(inner, width, bias=bias)
        self.act_fn = _make_activation(config)

    def forward(self, op: OpBuilder, x: ir.Value) -> Any:
        """Return the feed-forward output of `x`."""
        return self.down_proj(op, self.act_fn(op, self.up_proj(op, x)))
