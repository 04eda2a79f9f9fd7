"""`Mamba`: a selective state space whose every channel has decays of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.activations import silu
from mobius_components.config import ArchitectureConfig
from mobius_components.layers.causal_conv import CausalConv, conv_state
from mobius_components.layers.context import LayerContext
from mobius_components.layers.linear import Linear
from mobius_components.layers.norm import RMSNorm
from mobius_components.layers.recurrence import (
    recurrent_state,
    selective_scan,
    to_float,
    to_type_of,
)
from mobius_components.layers.state import LayerState, StateSpec
from mobius_components.parameter import Parameter
from mobius_components.state_space_config import MambaConfig

_FLOAT = ir.DataType.FLOAT


class PlainRMSNorm(nn.Module):
    """RMS norm without weights. Source: `transformers` `MambaWeightlessRMSNorm`."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self._size, self._eps = size, eps

    def forward(self, op: OpBuilder, x: ir.Value) -> Any:
        """Return `x` normalised."""
        dtype = x.dtype or _FLOAT
        ones = ir.tensor(np.ones(self._size, dtype.numpy()), dtype=dtype)
        return op.RMSNormalization(
            x,
            op.initializer(ones, name="ones"),
            axis=-1,
            epsilon=self._eps,
            stash_type=int(_FLOAT),
        )


class Mamba(nn.Module):
    """Projection, convolution, selective scan and gate, `[B, S, hidden]` -> the same.

    Source: `transformers` `MambaMixer`, `FalconMambaMixer`, `JambaMambaMixer` (norms of what the
    scan's parameters are made from).
    """

    def __init__(self, config: ArchitectureConfig, layer: int) -> None:
        super().__init__()
        del layer  # all are alike
        mamba = _settings(config)
        hidden, channels = config.hidden_size, mamba.channels
        rank, size, bias = mamba.time_step_rank, mamba.state_size, mamba.projection_bias
        self.in_proj = Linear(hidden, 2 * channels, bias=bias)
        self.conv1d = CausalConv(
            channels, mamba.conv_taps, bias=mamba.conv_bias, activation=mamba.activation
        )
        self.x_proj = Linear(channels, rank + 2 * size)
        self.dt_proj = TimeStep(rank, channels)
        self.A_log = Parameter([channels, size], _FLOAT)
        self.D = Parameter([channels], _FLOAT)
        self.out_proj = Linear(channels, hidden, bias=bias)
        self.dt_layernorm = _parameter_norm(mamba, rank)
        self.b_layernorm = _parameter_norm(mamba, size)
        self.c_layernorm = _parameter_norm(mamba, size)
        self._sections = [rank, size, size]

    @staticmethod
    def states(config: ArchitectureConfig, layer: int) -> tuple[StateSpec, ...]:
        """Return the specs of the states of convolution and scan."""
        del layer
        mamba = _settings(config)
        return (
            conv_state(mamba.channels, mamba.conv_taps),
            recurrent_state(mamba.channels, mamba.state_size),
        )

    def forward(
        self, op: OpBuilder, x: ir.Value, context: LayerContext, past: LayerState
    ) -> tuple[Any, LayerState]:
        """Return what is added to the stream, and the states after it."""
        past_conv, past_state = past
        value, gate = op.Split(self.in_proj(op, x), axis=-1, num_outputs=2, _outputs=2)
        value, present_conv = self.conv1d(op, value, context.tokens, past_conv)
        step, write, read = op.Split(self.x_proj(op, value), self._sections, axis=-1, _outputs=3)
        norms = (self.dt_layernorm, self.b_layernorm, self.c_layernorm)
        step, write, read = (
            part if norm is None else norm(op, part)
            for norm, part in zip(norms, (step, write, read), strict=True)
        )
        # Padding behind the real tokens takes no time: it changes nothing.
        step = op.Mul(self.dt_proj(op, step), context.tokens.weight(op))
        value = to_float(op, value)
        y, present_state = selective_scan(
            op,
            value,
            step,
            op.Neg(op.Exp(self.A_log)),
            to_float(op, write),
            to_float(op, read),
            past_state,
        )
        y = op.Mul(op.Add(y, op.Mul(value, self.D)), silu(op, to_float(op, gate)))
        return self.out_proj(op, to_type_of(op, y, x)), (present_conv, present_state)


class TimeStep(nn.Module):
    """`softplus(x W^T + b)`, float32. Source: `transformers` `MambaMixer`."""

    def __init__(self, rank: int, channels: int) -> None:
        super().__init__()
        self.weight = Parameter([channels, rank])
        self.bias = Parameter([channels], _FLOAT)

    def forward(self, op: OpBuilder, x: ir.Value) -> Any:
        """Return the time steps of `x`."""
        projected = op.MatMul(x, op.Transpose(self.weight, perm=[1, 0]))
        return op.Softplus(op.Add(to_float(op, projected), self.bias))


def _settings(config: ArchitectureConfig) -> MambaConfig:
    assert config.mamba is not None  # checked by the configuration
    return config.mamba


def _parameter_norm(mamba: MambaConfig, size: int) -> nn.Module | None:
    if mamba.parameter_norm is None:
        return None
    kind = RMSNorm if mamba.parameter_norm == "rms" else PlainRMSNorm
    return kind(size, mamba.parameter_norm_eps)
