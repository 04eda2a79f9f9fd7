"""A feed-forward layer most of whose gates are cut to zero: `[B, S, hidden]` -> the same."""

from __future__ import annotations

import statistics
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_components.config import ArchitectureConfig
from mobius_components.layers.mlp import GatedMLP


class SparseMLP(GatedMLP):
    """Gates below a quantile of the token's own are cut, as if they were normally distributed.

    Source: `transformers` `Gemma3nTextMLP`.
    """

    def __init__(self, config: ArchitectureConfig, intermediate_size: int, sparsity: float) -> None:
        """Make the layer; `sparsity` is the part of the gates that is to be cut."""
        super().__init__(config, intermediate_size)
        self._deviations = statistics.NormalDist().inv_cdf(sparsity)
        activate = self.act_fn
        self.act_fn = lambda op, gate: activate(op, self._cut(op, gate))

    def _cut(self, op: OpBuilder, gate: ir.Value) -> Any:
        """Return how far each gate is above the quantile, 0 where it is below."""
        dtype = gate.dtype
        # The squares of half-precision gates may be too large for their own type.
        wide = gate if dtype == ir.DataType.FLOAT else op.Cast(gate, to=ir.DataType.FLOAT)
        mean = op.ReduceMean(wide, [-1], keepdims=1)
        centred = op.Sub(wide, mean)
        variance = op.ReduceMean(op.Mul(centred, centred), [-1], keepdims=1)
        above = op.Relu(op.Sub(centred, op.Mul(op.Sqrt(variance), self._deviations)))
        return above if dtype == ir.DataType.FLOAT else op.Cast(above, to=dtype)
