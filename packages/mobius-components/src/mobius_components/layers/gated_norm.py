"""`GatedNorm`: the norm of a scan's output, with a gate before or after it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.activations import silu
from mobius_components.parameter import Parameter

_FLOAT = ir.DataType.FLOAT


class GatedNorm(nn.Module):
    """RMS norm, group by group, times `silu(gate)`, in float32: `[B, S, groups * size]`.

    Source: `transformers` `MambaRMSNormGated` (gate first), `FalconH1RMSNormGated`,
    `Qwen3NextRMSNormGated` (gate last; all heads share the weights).
    """

    def __init__(
        self, groups: int, size: int, eps: float, *, gate_first: bool, shared: bool = False
    ) -> None:
        super().__init__()
        self.weight = Parameter([size if shared else groups * size], _FLOAT)
        self._groups, self._size, self._eps = groups, size, eps
        self._gate_first = gate_first
        self._shared = shared or groups == 1

    def forward(self, op: OpBuilder, x: ir.Value, gate: ir.Value) -> Any:
        """Return float32 `x` normalised and gated; `gate` is float32 of the same shape."""
        factor = silu(op, gate)
        if self._gate_first:
            return self._norm(op, op.Mul(x, factor))
        return op.Mul(self._norm(op, x), factor)

    def _norm(self, op: OpBuilder, x: ir.Value) -> Any:
        groups, size = self._groups, self._size
        if groups == 1:
            return self._rms(op, x, self.weight)
        split = op.Reshape(x, [0, 0, groups, size])
        # The operator's weight is that of the normalised axis alone.
        ones = op.initializer(ir.tensor(np.ones(size, np.float32)), name="ones")
        normed = self._rms(op, split, self.weight if self._shared else ones)
        joined = op.Reshape(normed, [0, 0, groups * size])
        return joined if self._shared else op.Mul(joined, self.weight)

    def _rms(self, op: OpBuilder, x: ir.Value, weight: ir.Value) -> Any:
        return op.RMSNormalization(
            x, weight, axis=-1, epsilon=self._eps, stash_type=int(ir.DataType.FLOAT)
        )
