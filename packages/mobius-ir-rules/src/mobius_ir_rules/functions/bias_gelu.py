"""Body of `com.microsoft::BiasGelu`: `C = Gelu(A + B)`, the exact (erf) form.

`A` has shape `[..., hidden]`, `B` `[hidden]`; both, and `C`, have one float type.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.body import make_function
from mobius_ir_rules.values import MICROSOFT

BIAS_GELU = (MICROSOFT, "BiasGelu")


def bias_gelu(opset_version: int) -> ir.Function:
    """Return the body of BiasGelu for `opset_version`."""

    def body(op: OpBuilder, a: ir.Value, b: ir.Value) -> Any:
        x = op.Add(a, b)
        if opset_version >= 20:
            return op.Gelu(x)

        def constant(value: float) -> Any:
            return op.CastLike(op.Constant(value_float=value), x)

        erf = op.Erf(op.Div(x, constant(math.sqrt(2.0))))
        return op.Mul(op.Mul(x, constant(0.5)), op.Add(erf, constant(1.0)))

    return make_function(BIAS_GELU, ["A", "B"], ["C"], [], body, opset_version)
