"""`scaled`: a value times a fixed factor, and no node for a factor of one."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder


def scaled(op: OpBuilder, x: ir.Value, factor: float) -> Any:
    """Return `x` times `factor`, as it is for a factor of one."""
    return x if factor == 1.0 else op.Mul(x, factor)
