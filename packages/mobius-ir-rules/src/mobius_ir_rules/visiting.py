"""Data a part at a time: of tensors and expressions that are never whole in memory.

`visit_numbers(expression, visit)` hands out what an expression computes, in row-major order and in
small parts where its leaves allow it; a `RowSink` makes whole rows of such parts.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np

from mobius_ir_rules.block_quantization import Array
from mobius_ir_rules.expressions import Concat, Expression, Leaf, Reshape

__all__ = ["RowSink", "Visit", "VisitedExpression", "VisitedTensor", "visit_numbers"]

Visit = Callable[[Array], object]
"""Takes a flat, contiguous part of some data, in row-major order, and does not keep it."""

_CHUNK = 1 << 20  # numbers that a sink passes on at a time


@runtime_checkable
class VisitedTensor(Protocol):
    """A tensor that can hand out its data in parts."""

    def visit(self, visit: Visit) -> None:
        """Call `visit` with every part of the data."""
        ...


class VisitedExpression(Expression):
    """An expression whose data come in parts; nobody need have them whole."""

    @abc.abstractmethod
    def visit(self, visit: Visit) -> None:
        """Call `visit` with every part of the data."""

    def array(self) -> Array:
        """Return a new array."""
        return self.materialize()

    def fill(self, out: Array) -> None:
        """Write the data into `out`, of this shape, converted to its dtype."""
        whole = np.empty(self.shape, self.dtype.numpy())
        flat, filled = whole.reshape(-1), 0

        def keep(part: Array) -> None:
            nonlocal filled
            flat[filled : filled + part.size] = part
            filled += part.size

        self.visit(keep)
        if filled != flat.size:
            raise ValueError(f"{filled} of {flat.size} elements came from the source")
        out[...] = whole


def visit_numbers(expression: Expression, visit: Visit) -> None:
    """Call `visit` with the data of `expression` in parts, small ones where its leaves allow it."""
    if isinstance(expression, VisitedExpression):
        expression.visit(visit)
    elif isinstance(expression, Concat) and expression.axis == 0:
        for source in expression.sources:
            visit_numbers(source, visit)
    elif isinstance(expression, Reshape):
        visit_numbers(expression.source, visit)
    elif isinstance(expression, Leaf) and (tensor := _in_parts(expression)) is not None:
        tensor.visit(visit)
    else:
        visit(np.ascontiguousarray(expression.array()).reshape(-1))


def _in_parts(leaf: Leaf) -> VisitedTensor | None:
    """Return the leaf's tensor, if it comes in parts and is what the leaf declares."""
    tensor = leaf.value.const_value
    if tensor is None or tensor.dtype != leaf.dtype or tensor.shape.numpy() != leaf.shape:
        return None
    return tensor if isinstance(tensor, VisitedTensor) else None


class RowSink:
    """Collects numbers into whole rows and passes some rows on at a time.

    Call it with flat arrays, in row-major order, then `close` it.
    """

    def __init__(self, k: int, handle: Callable[[Array], None]) -> None:
        """Pass rows of `k` numbers on to `handle`, as `[rows, k]`."""
        self._k = k
        self._most = max(1, _CHUNK // k) * k
        self._handle = handle
        self._begun: list[Array] = []  # of the row that is not complete yet
        self._size = 0

    def __call__(self, chunk: Array) -> None:
        """Take numbers; those of a row that is not complete are copied."""
        if self._size:
            missing = min(self._k - self._size, chunk.size)
            self._begin(chunk[:missing])
            chunk = chunk[missing:]
            if self._size == self._k:
                self._handle(np.concatenate(self._begun).reshape(1, self._k))
                self._begun, self._size = [], 0
        whole = chunk.size - chunk.size % self._k
        for start in range(0, whole, self._most):
            stop = min(start + self._most, whole)
            self._handle(chunk[start:stop].reshape(-1, self._k))
        self._begin(chunk[whole:])

    def close(self) -> None:
        """Check that the last row was complete.

        Raises:
            ValueError: if it was not.
        """
        if self._size:
            raise ValueError(f"The last row has {self._size} of {self._k} elements")

    def _begin(self, numbers: Array) -> None:
        if numbers.size:
            self._begun.append(numbers.copy())
            self._size += numbers.size
