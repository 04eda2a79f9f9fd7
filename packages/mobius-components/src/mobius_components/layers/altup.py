"""AltUp: several residual streams, of which a layer computes one and predicts the others.

Streams are `[B, S, streams, hidden]` here: that way a token's streams are mixed by one product.
Source: https://arxiv.org/abs/2301.13310, `transformers` `Gemma3nTextAltUp`, `Gemma3nTextModel`.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import ArchitectureConfig
from mobius_components.layers.linear import Linear
from mobius_components.layers.norm import RMSNorm
from mobius_components.per_layer_config import AltUpConfig

_LEAST_SQUARE = 1e-5
"""Of a stream that is brought to another's size; as `transformers` has it."""


class AltUpSpread(nn.Module):
    """The streams of the embedded tokens: these themselves, and projections as large."""

    def __init__(self, config: ArchitectureConfig, altup: AltUpConfig) -> None:
        super().__init__()
        width, others = config.hidden_size, range(1, altup.num_inputs)
        self.projections = nn.ModuleList([Linear(width, width) for _ in others])

    def forward(self, op: OpBuilder, embedded: ir.Value) -> Any:
        """Return the streams of `embedded`, `[B, S, hidden]`."""
        size = _size(op, embedded)
        others = [_resized(op, projection(op, embedded), size) for projection in self.projections]
        return op.Concat(*(op.Unsqueeze(x, [2]) for x in (embedded, *others)), axis=2)


class AltUpGather(nn.Module):
    """The mean of the first stream and of projections of the others that are as large."""

    def __init__(self, config: ArchitectureConfig, altup: AltUpConfig) -> None:
        super().__init__()
        width, others = config.hidden_size, range(1, altup.num_inputs)
        self.projections = nn.ModuleList([Linear(width, width) for _ in others])
        self._count = altup.num_inputs

    def forward(self, op: OpBuilder, streams: ir.Value) -> Any:
        """Return `[B, S, hidden]`."""
        total, *others = (stream_of(op, streams, index) for index in range(self._count))
        size = _size(op, total)
        for projection, x in zip(self.projections, others, strict=True):
            total = op.Add(total, _resized(op, projection(op, x), size))
        return op.Mul(total, 1.0 / self._count)


class AltUp(nn.Module):
    """Predicts the streams after a layer, and corrects them by what the layer made of one."""

    def __init__(self, config: ArchitectureConfig, altup: AltUpConfig) -> None:
        super().__init__()
        hidden, count = config.hidden_size, altup.num_inputs
        self.correction_coefs = Linear(count, count)
        self.prediction_coefs = Linear(count, count * count)
        self.modality_router = Linear(hidden, count)
        self.router_norm = RMSNorm(hidden, config.rms_norm_eps)
        self._hidden, self._count, self._active = hidden, count, altup.active

    def forward(self, op: OpBuilder, streams: ir.Value, activated: ir.Value | None = None) -> Any:
        """Return the predicted streams, or corrected ones.

        Args:
            op: Builder.
            streams: Those before the layer; to be corrected, the predicted ones.
            activated: What the layer made of one of them, `[B, S, hidden]`; `None` to predict.
        """
        if activated is None:
            modalities = self._modalities(op, stream_of(op, streams, self._active))
            shape = [0, 0, self._count, self._count]
            coefficients = op.Reshape(self.prediction_coefs(op, modalities), shape)
            return op.Add(op.MatMul(coefficients, streams), streams)
        innovation = op.Sub(activated, stream_of(op, streams, self._active))
        weights = op.Add(self.correction_coefs(op, self._modalities(op, activated)), 1.0)
        update = op.Mul(op.Unsqueeze(weights, [3]), op.Unsqueeze(innovation, [2]))
        return op.Add(update, streams)

    def _modalities(self, op: OpBuilder, x: ir.Value) -> Any:
        normed = op.Mul(self.router_norm(op, x), 1.0 / self._hidden)
        return op.Tanh(self.modality_router(op, normed))


def stream_of(op: OpBuilder, streams: ir.Value, index: int) -> Any:
    """Return one of the streams, `[B, S, hidden]`."""
    return op.Gather(streams, op.Constant(value_int=index), axis=2)


def _mean_square(op: OpBuilder, x: ir.Value) -> Any:
    """Return float32 `[B, S, 1]`: squares of half-precision numbers may be too large for them."""
    wide = x if x.dtype == ir.DataType.FLOAT else op.Cast(x, to=ir.DataType.FLOAT)
    return op.ReduceMean(op.Mul(wide, wide), [-1], keepdims=1)


def _size(op: OpBuilder, x: ir.Value) -> Any:
    return op.Sqrt(_mean_square(op, x))


def _resized(op: OpBuilder, x: ir.Value, size: ir.Value) -> Any:
    """Return `x` with the root of its mean square as `size`, float32 `[B, S, 1]`."""
    factor = op.Div(size, op.Sqrt(op.Max(_mean_square(op, x), _LEAST_SQUARE)))
    return op.Mul(x, factor if x.dtype == ir.DataType.FLOAT else op.Cast(factor, to=x.dtype))
