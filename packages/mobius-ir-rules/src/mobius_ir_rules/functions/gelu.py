"""Body of `com.microsoft::Gelu`: the exact (erf) form; and both forms for the bodies that use one.

`Y = Gelu(X)`: any shape, one float type. ai.onnx has the operator from opset 20 on.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.body import make_function
from mobius_ir_rules.values import MICROSOFT

GELU = (MICROSOFT, "Gelu")

_OPERATOR_SINCE = 20


def gelu(opset_version: int) -> ir.Function:
    """Return the body of com.microsoft's Gelu for `opset_version`."""

    def body(op: OpBuilder, x: ir.Value) -> Any:
        return exact_gelu(op, x, opset_version)

    return make_function(GELU, ["X"], ["Y"], [], body, opset_version)


def exact_gelu(op: OpBuilder, x: ir.Value, opset_version: int) -> Any:
    """Return `x / 2 (1 + erf(x / sqrt(2)))`."""
    if opset_version >= _OPERATOR_SINCE:
        return op.Gelu(x)
    erf = op.Erf(op.Div(x, _constant(op, math.sqrt(2.0), x)))
    return op.Mul(op.Mul(x, _constant(op, 0.5, x)), op.Add(erf, _constant(op, 1.0, x)))


def tanh_gelu(op: OpBuilder, x: ir.Value, opset_version: int) -> Any:
    """Return `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`."""
    if opset_version >= _OPERATOR_SINCE:
        return op.Gelu(x, approximate="tanh")
    # x + 0.044715 x^3 as x (1 + 0.044715 x^2): one multiplication fewer.
    cubic = op.Add(op.Mul(op.Mul(x, x), _constant(op, 0.044715, x)), _constant(op, 1.0, x))
    inner = op.Mul(op.Mul(x, cubic), _constant(op, math.sqrt(2.0 / math.pi), x))
    return op.Mul(op.Mul(x, _constant(op, 0.5, x)), op.Add(op.Tanh(inner), _constant(op, 1.0, x)))


def _constant(op: OpBuilder, value: float, like: ir.Value) -> Any:
    return op.CastLike(op.Constant(value_float=value), like)
