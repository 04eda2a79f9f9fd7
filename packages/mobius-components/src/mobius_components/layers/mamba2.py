"""`Mamba2`: a state space with one decay a head, a linear attention with gates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.activations import silu
from mobius_components.config import ArchitectureConfig
from mobius_components.layers.causal_conv import CausalConv, conv_state
from mobius_components.layers.context import LayerContext
from mobius_components.layers.gated_norm import GatedNorm
from mobius_components.layers.linear import Linear
from mobius_components.layers.recurrence import (
    linear_attention,
    recurrent_state,
    to_float,
    to_type_of,
)
from mobius_components.layers.state import LayerState, StateSpec
from mobius_components.layers.token_order import TokenOrder
from mobius_components.parameter import Parameter
from mobius_components.state_space_config import Mamba2Config

_FLOAT = ir.DataType.FLOAT


class Mamba2(nn.Module):
    """Projection, convolution, scan and gated norm, `[B, S, hidden]` -> the same.

    The scan is `LinearAttention` with C as queries, B as keys and `time_step * x` as values. Its
    state is `[B, heads, state_size, head_size]`, the transpose of `transformers`'.

    transformers clips time steps in its prefill and not in its decode steps; here they are clipped
    in both, so that a text gives the same logits however it is cut.
    Source: `transformers` `Mamba2Mixer`, `BambaMixer`, `FalconH1Mixer`, `NemotronHMamba2Mixer`,
    `Zamba2MambaMixer`.
    """

    def __init__(self, config: ArchitectureConfig, layer: int) -> None:
        super().__init__()
        del layer  # all are alike
        mamba = _settings(config)
        self._settings = mamba
        channels, groups = mamba.channels, mamba.groups
        self._sections = [channels, mamba.conv_channels, mamba.heads]
        self.in_proj = Linear(config.hidden_size, sum(self._sections), bias=mamba.projection_bias)
        self.conv1d = CausalConv(
            mamba.conv_channels, mamba.conv_taps, bias=mamba.conv_bias, activation=mamba.activation
        )
        self.dt_bias = Parameter([mamba.heads], _FLOAT)
        self.A_log = Parameter([mamba.heads], _FLOAT)
        self.D = Parameter([mamba.heads], _FLOAT)
        self.norm = (
            None
            if mamba.gated_norm is None
            else GatedNorm(
                groups,
                channels // groups,
                mamba.gated_norm_eps,
                gate_first=mamba.gated_norm == "after_gate",
            )
        )
        self.out_proj = Linear(channels, config.hidden_size, bias=mamba.output_bias)

    @staticmethod
    def states(config: ArchitectureConfig, layer: int) -> tuple[StateSpec, ...]:
        """Return the specs of the states of convolution and scan."""
        del layer
        mamba = _settings(config)
        return (
            conv_state(mamba.conv_channels, mamba.conv_taps),
            recurrent_state(mamba.heads, mamba.state_size, mamba.head_size),
        )

    def forward(
        self, op: OpBuilder, x: ir.Value, context: LayerContext, past: LayerState
    ) -> tuple[Any, LayerState]:
        """Return what is added to the stream, and the states after it."""
        mamba, (past_conv, past_state) = self._settings, past
        gate, mixed, step = op.Split(self._project(op, x), self._sections, axis=-1, _outputs=3)
        mixed, present_conv = self.conv1d(op, mixed, context.tokens, past_conv)
        value, write, read = (
            to_float(op, part)
            for part in op.Split(
                mixed,
                [mamba.channels, mamba.group_width, mamba.group_width],
                axis=-1,
                _outputs=3,
            )
        )
        step = self._time_step(op, step, context.tokens)
        y, present_state = linear_attention(
            op,
            read,
            write,
            self._scale_heads(op, value, op.Unsqueeze(step, [3])),
            past_state,
            op.Mul(step, op.Neg(op.Exp(self.A_log))),
            query_heads=mamba.groups,
            value_heads=mamba.heads,
            scale=1.0,
        )
        y = op.Add(y, self._scale_heads(op, value, op.Unsqueeze(self.D, [1])))
        gate = to_float(op, gate)
        y = op.Mul(y, silu(op, gate)) if self.norm is None else self.norm(op, y, gate)
        return self.out_proj(op, to_type_of(op, y, x)), (present_conv, present_state)

    def _project(self, op: OpBuilder, x: ir.Value) -> Any:
        """Return gate, what is convolved, and time steps, side by side."""
        mamba = self._settings
        if mamba.input_multiplier != 1.0:
            x = op.Mul(x, mamba.input_multiplier)
        projected = self.in_proj(op, x)
        if set(mamba.section_multipliers) == {1.0}:
            return projected
        widths = [mamba.channels] * 2 + [mamba.group_width] * 2 + [mamba.heads]
        dtype = projected.dtype or _FLOAT
        factors = np.repeat(mamba.section_multipliers, widths).astype(dtype.numpy())
        return op.Mul(projected, op.initializer(ir.tensor(factors, dtype=dtype), name="factors"))

    def _time_step(self, op: OpBuilder, step: ir.Value, tokens: TokenOrder) -> Any:
        """Return the time steps, float32 `[B, S, heads]`, 0 at padding: it changes nothing."""
        mamba = self._settings
        step = op.Softplus(op.Add(to_float(op, step), self.dt_bias))
        if mamba.time_step_min > 0:
            step = op.Max(step, mamba.time_step_min)
        if mamba.time_step_max < math.inf:
            step = op.Min(step, mamba.time_step_max)
        return op.Mul(step, tokens.weight(op))

    def _scale_heads(self, op: OpBuilder, x: ir.Value, factor: ir.Value) -> Any:
        """Return `x`, `[B, S, channels]`, with each head times its factor, `[..., heads, 1]`."""
        split = op.Reshape(x, [0, 0, self._settings.heads, self._settings.head_size])
        return op.Reshape(op.Mul(split, factor), [0, 0, self._settings.channels])


def _settings(config: ArchitectureConfig) -> Mamba2Config:
    assert config.mamba2 is not None  # checked by the configuration
    return config.mamba2
