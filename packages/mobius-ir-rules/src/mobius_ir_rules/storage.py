"""`bytes_of(expression)`: the expression whose bytes, as ONNX stores them, are the same.

A weight may be in a model twice without being in its file twice: the integers of a quantized
embedding are rows of bytes to `GatherBlockQuantized`, blocks of bytes to `MatMulNBits`, and 4-bit
integers to `DequantizeLinear`.
"""

from __future__ import annotations

from mobius_ir_rules.expressions import Expression, Reshape
from mobius_ir_rules.packed_integers import Nibbles

__all__ = ["bytes_of"]


def bytes_of(expression: Expression) -> Expression:
    """Return what `expression` only gives another shape or type to; itself, if it does more."""
    while isinstance(expression, Reshape) or (
        isinstance(expression, Nibbles) and _is_whole(expression)
    ):
        expression = expression.source
    return expression


def _is_whole(integers: Nibbles) -> bool:
    """Whether rows have no padding behind their last integer."""
    source = integers.source
    count = 1
    for dim in source.shape:
        count *= dim
    return 2 * count == integers.rows * integers.columns
