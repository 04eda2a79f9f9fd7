"""`compare(a, b)`: how far two arrays are apart, and whether that is too far."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from mobius.ort import Array

__all__ = ["Difference", "Tolerance", "compare"]


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far a number of B may be from that of A: `absolute + relative * |A|`."""

    absolute: float
    relative: float


@dataclasses.dataclass(frozen=True)
class Difference:
    """How two arrays differ.

    Attributes:
        dtypes: Element type of A and of B.
        shapes: Shape of A and of B.
        max_abs: Largest difference of two numbers; `None` if none could be compared.
        max_rel: That divided by the largest magnitude in A.
        at: Where it is.
        values: The two numbers there.
        beyond: How many numbers are further apart than the tolerance, or NaN or infinite in only
            one of the two.
        compared: How many numbers were compared.
        not_a_number: How many NaN A and B have.
        problem: Why the two are not the same, as a sentence; `None` if they are.
    """

    dtypes: tuple[str, str]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    max_abs: float | None = None
    max_rel: float | None = None
    at: tuple[int, ...] | None = None
    values: tuple[float, float] | None = None
    beyond: int = 0
    compared: int = 0
    not_a_number: tuple[int, int] = (0, 0)
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold; what is NaN or infinite becomes text."""
        content = dataclasses.asdict(self)
        for name in ("max_abs", "max_rel"):
            content[name] = _plain(content[name])
        if self.values is not None:
            content["values"] = [_plain(value) for value in self.values]
        return content


def compare(
    a: Array,
    b: Array,
    tolerance: Tolerance,
    *,
    real: Array | None = None,
    other_dtype: bool = False,
    allow_nan: bool = False,
) -> Difference:
    """Compare two arrays of numbers, booleans or strings.

    Args:
        a: The reference.
        b: What is compared with it.
        tolerance: For floats; anything else must be equal.
        real: Which numbers count, broadcast to the shape; `None` for all.
        other_dtype: Let the two be floats of different types.
        allow_nan: Let both be NaN at one place. Otherwise any NaN is a problem, since two models
            that both fail say nothing about each other.
    """
    names = (str(a.dtype), str(b.dtype))
    base = Difference(names, (a.shape, b.shape))
    if a.shape != b.shape:
        return dataclasses.replace(
            base, problem=f"The shapes are {list(a.shape)} and {list(b.shape)}."
        )
    floats = _is_float(a) and _is_float(b)
    if a.dtype != b.dtype and not (floats and other_dtype):
        return dataclasses.replace(base, problem=f"The dtypes are {names[0]} and {names[1]}.")
    if not floats and a.dtype.kind not in "biu":
        equal = bool(np.array_equal(a, b))
        problem = None if equal else "The values are not equal."
        return dataclasses.replace(base, compared=a.size, problem=problem)
    return _compare_numbers(base, a, b, tolerance if floats else _EQUAL, real, allow_nan)


_EQUAL = Tolerance(0.0, 0.0)


def _compare_numbers(
    base: Difference, a: Array, b: Array, tolerance: Tolerance, real: Array | None, allow_nan: bool
) -> Difference:
    counts = np.ones(a.shape, bool) if real is None else np.broadcast_to(real, a.shape)
    # float64 holds every difference of narrower floats, and of integers below 2**53
    x, y = a.astype(np.float64), b.astype(np.float64)
    x_nan, y_nan = np.isnan(x) & counts, np.isnan(y) & counts
    with np.errstate(invalid="ignore"):
        gap = np.abs(x - y)
    gap[x == y] = 0.0  # equal infinities
    alone = (x_nan != y_nan) | (np.isinf(gap) & counts)
    usable = counts & np.isfinite(gap)
    with np.errstate(invalid="ignore"):
        beyond = alone | (usable & (gap > tolerance.absolute + tolerance.relative * np.abs(x)))
    result = dataclasses.replace(
        base,
        beyond=int(beyond.sum()),
        compared=int(counts.sum()),
        not_a_number=(int(x_nan.sum()), int(y_nan.sum())),
    )
    if usable.any():
        flat = int(np.argmax(np.where(usable, gap, -1.0)))
        at = tuple(int(index) for index in np.unravel_index(flat, a.shape))
        magnitudes = np.abs(x[counts & np.isfinite(x)])
        scale = float(magnitudes.max(initial=0.0))
        largest = float(gap[at])
        result = dataclasses.replace(
            result,
            max_abs=largest,
            max_rel=largest / scale if scale else (math.inf if largest else 0.0),
            at=at,
            values=(float(x[at]), float(y[at])),
        )
    return dataclasses.replace(result, problem=_problem(result, alone, tolerance, allow_nan))


def _problem(result: Difference, alone: Array, tolerance: Tolerance, allow_nan: bool) -> str | None:
    if alone.any():
        at = [int(index) for index in np.argwhere(alone)[0]]
        return (
            f"{int(alone.sum())} of {result.compared} numbers are NaN or infinite in one of the "
            f"two only, the first at {at}."
        )
    if any(result.not_a_number) and not allow_nan:
        return f"{result.not_a_number[0]} of {result.compared} numbers are NaN in both."
    if result.beyond:
        allowed = f"{tolerance.absolute:g} + {tolerance.relative:g} |A|"
        return (
            f"{result.beyond} of {result.compared} numbers differ by more than {allowed}."
            if tolerance != _EQUAL
            else f"{result.beyond} of {result.compared} numbers are not equal."
        )
    return None


def _is_float(array: Array) -> bool:
    # The floats of ml_dtypes are of kind "V" or "f" to numpy, and no integers of it matter here.
    return array.dtype.kind == "f" or "float" in array.dtype.name


def _plain(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)
