"""Body of `com.microsoft::FastGelu`: `Y = Gelu(X + bias)`, the tanh approximation.

`X` has shape `[..., hidden]`, `bias` `[hidden]`; both, and `Y`, have one float type. `bias` is
optional for the operator but not for the body: a body cannot ask whether an input was given.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.body import make_function
from mobius_ir_rules.values import MICROSOFT

FAST_GELU = (MICROSOFT, "FastGelu")


def fast_gelu(opset_version: int) -> ir.Function:
    """Return the two-input body of FastGelu for `opset_version`."""

    def body(op: OpBuilder, x: ir.Value, bias: ir.Value) -> Any:
        total = op.Add(x, bias)
        if opset_version >= 20:
            return op.Gelu(total, approximate="tanh")

        def constant(value: float) -> Any:
            return op.CastLike(op.Constant(value_float=value), total)

        # x + 0.044715 x^3 as x (1 + 0.044715 x^2): one multiplication fewer.
        cubic = op.Add(op.Mul(op.Mul(total, total), constant(0.044715)), constant(1.0))
        inner = op.Mul(op.Mul(total, cubic), constant(math.sqrt(2.0 / math.pi)))
        return op.Mul(op.Mul(total, constant(0.5)), op.Add(op.Tanh(inner), constant(1.0)))

    return make_function(FAST_GELU, ["X", "bias"], ["Y"], [], body, opset_version)
