"""Body of `com.microsoft::BiasGelu`: `C = Gelu(A + B)`, the exact (erf) form.

`A` has shape `[..., hidden]`, `B` `[hidden]`; both, and `C`, have one float type.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.body import make_function
from mobius_ir_rules.functions.gelu import exact_gelu
from mobius_ir_rules.values import MICROSOFT

BIAS_GELU = (MICROSOFT, "BiasGelu")


def bias_gelu(opset_version: int) -> ir.Function:
    """Return the body of BiasGelu for `opset_version`."""

    def body(op: OpBuilder, a: ir.Value, b: ir.Value) -> Any:
        return exact_gelu(op, op.Add(a, b), opset_version)

    return make_function(BIAS_GELU, ["A", "B"], ["C"], [], body, opset_version)
