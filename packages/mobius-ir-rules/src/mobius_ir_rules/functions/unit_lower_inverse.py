"""The inverse of `I + L`, `L` strictly lower triangular, for many small matrices at once.

Forward substitution by blocks: the inverses of two neighbouring blocks on the diagonal and what
lies under the first and left of the second give the inverse of both together,

    inverse([[A, 0], [B, D]]) = [[inverse(A), 0], [-inverse(D) B inverse(A), inverse(D)]]

so that, with `B` all such parts of `L` between blocks of one size, `X = X - X B X` doubles the
size of the blocks of which `X` is the inverse. Blocks of one row have 1 as their inverse. Powers of
`L`, which cancel where rows are alike, do not occur: every `X` is a true inverse.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.token_loop import loop


@dataclasses.dataclass(frozen=True)
class Triangles:
    """Which elements of a square are where, boolean `[kinds, size, size]` each.

    Attributes:
        lower: On the diagonal or below; one kind.
        strictly_lower: Below the diagonal; one kind.
    """

    lower: Any
    strictly_lower: Any


@dataclasses.dataclass(frozen=True)
class Joints(Triangles):
    """What an inverse needs beside triangles.

    A joint is below the first and left of the second of two neighbouring blocks on the diagonal.

    Attributes:
        diagonal: On the diagonal; one kind.
        of_rows: Joints of blocks of one row; one kind.
        of_blocks: Joints of blocks of 2, 4, 8, ... rows.
        levels: How many of those the size has, an int64 scalar.
    """

    diagonal: Any
    of_rows: Any
    of_blocks: Any
    levels: Any


def triangles(op: OpBuilder, size: Any, largest: int) -> Triangles:
    """Return the triangles of a square.

    Args:
        op: Builder.
        size: Rows and columns, an int64 `[1]` of at most `largest`.
        largest: The most that `size` may be.
    """
    row, column = np.indices((largest, largest))
    return Triangles(*_masks(op, size, [row >= column, row > column], [1, 1]))


def joints(op: OpBuilder, size: Any, largest: int) -> Joints:
    """Return the triangles of a square, and what its inverse needs; see `triangles`."""
    row, column = np.indices((largest, largest))
    # The number of bits up to the highest one in which row and column differ.
    bits = np.frexp(row ^ column)[1]
    below, blocks = row > column, int(bits.max()) - 1
    kinds = [row >= column, below, row == column]
    kinds += [below & (bits == number) for number in range(1, bits.max() + 1)]
    # A size above 2 ** k has joints of blocks of 2 ** k rows.
    levels = np.maximum(np.frexp(np.arange(largest + 1) - 1)[1] - 1, 0).astype(np.int64)
    lower, strictly_lower, diagonal, of_rows, of_blocks = _masks(
        op, size, kinds, [1, 1, 1, 1, blocks]
    )
    of_size = op.Squeeze(op.Gather(op.Constant(value=ir.tensor(levels)), size))
    return Joints(lower, strictly_lower, diagonal, of_rows, of_blocks, of_size)


def _masks(op: OpBuilder, size: Any, kinds: Sequence[Any], parts: list[int]) -> Sequence[Any]:
    """Return the first `size` rows and columns of masks, in parts of so many."""
    masks = op.Slice(
        op.Constant(value=ir.tensor(np.stack(kinds))),
        op.Constant(value_ints=[0, 0]),
        op.Concat(size, size, axis=0),
        op.Constant(value_ints=[1, 2]),
    )
    split: Sequence[Any] = op.Split(
        masks, op.Constant(value_ints=parts), axis=0, _outputs=len(parts)
    )
    return split


def unit_lower_inverse(op: OpBuilder, x: Any, masks: Joints) -> Any:
    """Return the inverse of the unit matrix plus the part of `x` strictly below the diagonal.

    A `Loop` over sizes of blocks: a small matrix needs few of them, a single row none.

    Args:
        op: Builder.
        x: float32 `[B, heads, size, size]`.
        masks: The joints of that size.
    """
    zero = op.Constant(value_float=0.0)
    unit = op.Cast(masks.diagonal, to=ir.DataType.FLOAT)

    def join(inner: OpBuilder, blocks: Mapping[str, Any], inverse: Any) -> tuple[Any]:
        between = inner.Where(blocks["joints"], x, zero)
        between = inner.MatMul(inner.MatMul(inverse, between), inverse)
        return (inner.Sub(inverse, between),)

    first = op.Sub(unit, op.Where(masks.of_rows, x, zero))
    return loop(op, masks.levels, {"joints": masks.of_blocks}, first, join, rank=4, name="level")[0]
