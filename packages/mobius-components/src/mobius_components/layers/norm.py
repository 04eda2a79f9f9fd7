"""Norms over the last axis: `[..., size]` -> `[..., size]`."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.parameter import Parameter

# Statistics are float32 whatever the tensors are, as HuggingFace computes them.
_STASH_FLOAT32 = int(ir.DataType.FLOAT)


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight`. Source: `transformers` `LlamaRMSNorm`.

    The operator needs a weight: without one (`Llama4TextL2Norm`) it is a constant of ones.
    """

    def __init__(self, size: int, eps: float = 1e-6, *, weight: bool = True) -> None:
        super().__init__()
        self.weight = Parameter([size]) if weight else None
        self._size = size
        self._eps = eps

    def forward(self, op: OpBuilder, x: ir.Value) -> Any:
        """Return `x` normalised."""
        weight = _ones(op, self._size, x) if self.weight is None else self.weight
        return op.RMSNormalization(x, weight, axis=-1, epsilon=self._eps, stash_type=_STASH_FLOAT32)


class LayerNorm(nn.Module):
    """Mean and variance norm, with or without weight and bias. Source: `torch.nn.LayerNorm`.

    The operator needs a weight: without one it is a constant of ones.
    """

    def __init__(
        self, size: int, eps: float = 1e-5, *, weight: bool = True, bias: bool = True
    ) -> None:
        super().__init__()
        self.weight = Parameter([size]) if weight else None
        self.bias = Parameter([size]) if weight and bias else None
        self._size = size
        self._eps = eps

    def forward(self, op: OpBuilder, x: ir.Value) -> Any:
        """Return `x` normalised."""
        weight = _ones(op, self._size, x) if self.weight is None else self.weight
        inputs = [x, weight] if self.bias is None else [x, weight, self.bias]
        return op.LayerNormalization(*inputs, axis=-1, epsilon=self._eps, stash_type=_STASH_FLOAT32)


def _ones(op: OpBuilder, size: int, like: ir.Value) -> ir.Value:
    dtype = like.dtype or ir.DataType.FLOAT
    ones = ir.tensor(np.ones(size, dtype.numpy()), dtype=dtype)
    value: ir.Value = op.initializer(ones, name="ones")
    return value


class HeadWeight(nn.Module):
    """The weight of one head, `[size]`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = Parameter([size])

    def forward(self, op: OpBuilder) -> ir.Value:
        """Return the weight, which is part of the model from here on."""
        del op
        return self.weight


class EachHeadNorm(nn.Module):
    """`LayerNorm` without bias of each head, `[B, S, heads, size]`, with weights for each.

    Every head has a parameter of its own; the optimiser makes one tensor of them.
    Source: `transformers` `StableLmLayerNormPerHead`, `CohereLayerNorm`.
    """

    def __init__(self, heads: int, size: int, eps: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList([HeadWeight(size) for _ in range(heads)])
        self._plain = LayerNorm(size, eps, weight=False)
        self._shape = (heads, size)

    def forward(self, op: OpBuilder, x: ir.Value) -> Any:
        """Return `x` normalised."""
        weights = op.Concat(*(norm(op) for norm in self.norms), axis=0)
        return op.Mul(self._plain(op, x), op.Reshape(weights, list(self._shape)))


def make_norm(norm_type: str, size: int, eps: float) -> nn.Module:
    """Return the norm that `ArchitectureConfig.norm_type` names."""
    if norm_type in ("rms", "rms_plain"):
        return RMSNorm(size, eps, weight=norm_type == "rms")
    plain = norm_type == "layer_plain"
    return LayerNorm(size, eps, weight=not plain, bias=norm_type == "layer")
