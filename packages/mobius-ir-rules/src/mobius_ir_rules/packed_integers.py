"""`Nibbles`: a weight of bytes -> the tensor of 4-bit integers that lie in them; `Centred` bytes.

Expressions as those of `mobius_ir_rules.expressions`: they have dtype and shape from the start, and
read the weight's data when their own are asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from mobius_ir_rules.expressions import Expression
from mobius_ir_rules.visiting import Visit, VisitedExpression, visit_numbers


@dataclasses.dataclass(frozen=True, eq=False)
class Nibbles(Expression):
    """The integers in rows of bytes, as UINT4 or INT4 `[rows, columns]`.

    Bytes of one row follow each other; the low half of a byte comes first, and what a row has
    beyond `columns` is padding.

    Attributes:
        source: UINT8, of any shape, `rows` times some number of bytes.
        rows: Number of rows.
        columns: Number of integers of a row.
        dtype: UINT4, or INT4 for integers in two's complement.
    """

    source: Expression
    rows: int
    columns: int
    dtype: ir.DataType = ir.DataType.UINT4

    def __post_init__(self) -> None:
        """Derive the shape.

        Raises:
            ValueError: If the source is no UINT8 tensor, or has too few bytes.
        """
        size = int(np.prod(self.source.shape))
        if self.source.dtype != ir.DataType.UINT8 or size % self.rows:
            raise ValueError(
                f"{self.rows} rows of bytes are needed, found {self.source.dtype} "
                f"{list(self.source.shape)}"
            )
        if 2 * size // self.rows < self.columns:
            raise ValueError(
                f"Rows of {size // self.rows} bytes do not hold {self.columns} integers of 4 bits"
            )
        object.__setattr__(self, "shape", (self.rows, self.columns))

    def leaves(self) -> Iterator[ir.Value]:
        """Yield the source's leaves."""
        return self.source.leaves()

    def array(self) -> np.ndarray:
        """Return a new array."""
        packed = np.ascontiguousarray(self.source.array()).reshape(self.rows, -1)
        halves = np.stack([packed & 0xF, packed >> 4], axis=-1)
        integers: np.ndarray = halves.reshape(self.rows, -1)[:, : self.columns]
        if self.dtype == ir.DataType.INT4:
            integers = (integers ^ 8).astype(np.int8) - np.int8(8)
        return integers.astype(self.dtype.numpy())

    def fill(self, out: np.ndarray) -> None:
        """Write the integers into `out`."""
        out[...] = self.array()


@dataclasses.dataclass(frozen=True, eq=False)
class Centred(VisitedExpression):
    """Unsigned integers less the middle of their range, as signed ones in two's complement.

    That turns the highest bit of each. Those of 8 bits are INT8; bytes of two integers of 4 bits
    stay UINT8, for `Nibbles` to take apart.

    Attributes:
        source: UINT8.
        bits: Width of an integer, 4 or 8.
    """

    source: Expression
    bits: int

    def __post_init__(self) -> None:
        """Derive dtype and shape."""
        object.__setattr__(self, "dtype", ir.DataType.INT8 if self.bits == 8 else ir.DataType.UINT8)
        object.__setattr__(self, "shape", self.source.shape)

    def leaves(self) -> Iterator[ir.Value]:
        """Yield the source's leaves."""
        return self.source.leaves()

    def visit(self, visit: Visit) -> None:
        """Call `visit` with every part of the data."""
        highest = np.uint8(0x80 if self.bits == 8 else 0x88)
        dtype = self.dtype.numpy()
        visit_numbers(self.source, lambda part: visit((part ^ highest).view(dtype)))
