"""Norms over the last axis: `[..., size]` -> `[..., size]`."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.parameter import Parameter

# Statistics are float32 whatever the tensors are, as HuggingFace computes them.
_STASH_FLOAT32 = int(ir.DataType.FLOAT)


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight`. Source: `transformers` `LlamaRMSNorm`."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = Parameter([size])
        self._eps = eps

    def forward(self, op: OpBuilder, x: ir.Value) -> Any:
        """Return `x` normalised."""
        return op.RMSNormalization(
            x, self.weight, axis=-1, epsilon=self._eps, stash_type=_STASH_FLOAT32
        )


class LayerNorm(nn.Module):
    """Mean and variance norm with weight and bias. Source: `torch.nn.LayerNorm`."""

    def __init__(self, size: int, eps: float = 1e-5, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = Parameter([size])
        self.bias = Parameter([size]) if bias else None
        self._eps = eps

    def forward(self, op: OpBuilder, x: ir.Value) -> Any:
        """Return `x` normalised."""
        inputs = [x, self.weight] if self.bias is None else [x, self.weight, self.bias]
        return op.LayerNormalization(*inputs, axis=-1, epsilon=self._eps, stash_type=_STASH_FLOAT32)


def make_norm(norm_type: str, size: int, eps: float) -> nn.Module:
    """Return the norm that `ArchitectureConfig.norm_type` names."""
    return RMSNorm(size, eps) if norm_type == "rms" else LayerNorm(size, eps)
