"""Activations by their HuggingFace name: `ACTIVATIONS[name](op, x)` -> the activated value.

Source: `transformers.activations.ACT2FN`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

Activation = Callable[[OpBuilder, ir.Value], Any]


def gelu(op: OpBuilder, x: ir.Value) -> Any:
    """Return `x * Phi(x)`, exact (erf)."""
    return op.Gelu(x)


def gelu_tanh(op: OpBuilder, x: ir.Value) -> Any:
    """Return the tanh approximation of GELU."""
    return op.Gelu(x, approximate="tanh")


def quick_gelu(op: OpBuilder, x: ir.Value) -> Any:
    """Return `x * sigmoid(1.702 x)`."""
    return op.Mul(x, op.Sigmoid(op.Mul(x, 1.702)))


def relu(op: OpBuilder, x: ir.Value) -> Any:
    """Return `max(x, 0)`."""
    return op.Relu(x)


def relu_squared(op: OpBuilder, x: ir.Value) -> Any:
    """Return `max(x, 0) ** 2`."""
    rectified = op.Relu(x)
    return op.Mul(rectified, rectified)


def silu(op: OpBuilder, x: ir.Value) -> Any:
    """Return `x * sigmoid(x)`."""
    return op.Mul(x, op.Sigmoid(x))


def sigmoid(op: OpBuilder, x: ir.Value) -> Any:
    """Return the logistic function of `x`."""
    return op.Sigmoid(x)


def tanh(op: OpBuilder, x: ir.Value) -> Any:
    """Return the hyperbolic tangent of `x`."""
    return op.Tanh(x)


ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "gelu": gelu,
        "gelu_fast": gelu_tanh,
        "gelu_new": gelu_tanh,
        "gelu_pytorch_tanh": gelu_tanh,
        "quick_gelu": quick_gelu,
        "relu": relu,
        "relu2": relu_squared,
        "sigmoid": sigmoid,
        "silu": silu,
        "swish": silu,
        "tanh": tanh,
    }
)
