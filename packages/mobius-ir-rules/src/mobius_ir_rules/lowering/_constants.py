"""`make_scalar`: a number and an element type in, a `Constant` node of rank 0 out."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.values import make


def make_scalar(op: RewriterContext, number: float, dtype: ir.DataType) -> ir.Value:
    """Make a `Constant` node with a scalar, rounded to `dtype`.

    Not an initializer: function bodies have none.
    """
    tensor = ir.tensor(np.array(number, dtype.numpy()), dtype=dtype)
    return make(op, "Constant", [], (dtype, []), attributes={"value": tensor})
