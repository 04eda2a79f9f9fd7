"""`Linear`: `[..., in_features]` -> `[..., out_features]`; `Bias`: what is added to a product."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.parameter import Parameter


class Linear(nn.Module):
    """`y = x W^T + b` with the weight stored `[out_features, in_features]`, as HuggingFace does.

    Emits Transpose + MatMul (+ Add); which layout a target wants is the optimiser's matter.
    Source: `torch.nn.Linear`.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = Parameter([out_features, in_features])
        self.bias = Parameter([out_features]) if bias else None

    def forward(self, op: OpBuilder, x: ir.Value) -> Any:
        """Return the projection of `x`."""
        y = op.MatMul(x, op.Transpose(self.weight, perm=[1, 0]))
        return y if self.bias is None else op.Add(y, self.bias)


class Bias(nn.Module):
    """`y = x + b`: what is left of a `Linear` whose weight is that of another module."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.bias = Parameter([features])

    def forward(self, op: OpBuilder, x: ir.Value) -> Any:
        """Return `x` and the bias."""
        return op.Add(x, self.bias)
