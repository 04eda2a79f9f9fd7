"""`Nibbles`: a weight of bytes -> the tensor of 4-bit integers that lie in them.

An expression as those of `mobius_ir_rules.expressions`: it has its dtype and shape from the start,
and reads the weight's data when its own are asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from mobius_ir_rules.expressions import Expression


@dataclasses.dataclass(frozen=True, eq=False)
class Nibbles(Expression):
    """The integers in rows of bytes, as UINT4 `[rows, columns]`.

    Bytes of one row follow each other; the low half of a byte comes first, and what a row has
    beyond `columns` is padding.

    Attributes:
        source: UINT8, of any shape, `rows` times some number of bytes.
        rows: Number of rows.
        columns: Number of integers of a row.
    """

    source: Expression
    rows: int
    columns: int
    dtype: ir.DataType = dataclasses.field(default=ir.DataType.UINT4, init=False)

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
        return integers.astype(self.dtype.numpy())

    def fill(self, out: np.ndarray) -> None:
        """Write the integers into `out`."""
        out[...] = self.array()
