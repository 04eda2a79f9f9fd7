"""Body of `com.microsoft::QuickGelu`: `Y = X * Sigmoid(alpha * X)`, any shape, one float type."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.body import float_attribute, make_function
from mobius_ir_rules.values import MICROSOFT

QUICK_GELU = (MICROSOFT, "QuickGelu")


def quick_gelu(opset_version: int) -> ir.Function:
    """Return the body of QuickGelu for `opset_version`."""

    def body(op: OpBuilder, x: ir.Value) -> Any:
        alpha = op.CastLike(float_attribute(op, "alpha"), x)
        return op.Mul(x, op.Sigmoid(op.Mul(x, alpha)))

    return make_function(
        QUICK_GELU, ["X"], ["Y"], [ir.AttrFloat32("alpha", 1.702)], body, opset_version
    )
