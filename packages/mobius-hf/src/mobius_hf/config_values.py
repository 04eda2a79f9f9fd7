"""What a value of a config is, and how messages show it."""

from __future__ import annotations

import math
from typing import TypeGuard


def is_real(value: object) -> TypeGuard[int | float]:
    """Return whether `value` is a number, infinite ones too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def is_finite(value: object) -> TypeGuard[int | float]:
    """Return whether `value` is a number that is neither infinite nor NaN."""
    return is_real(value) and math.isfinite(value)


def shortened(value: object, length: int = 80) -> str:
    """Return `value` as Python writes it, cut to `length`."""
    text = repr(value)
    return text if len(text) <= length else f"{text[: length - 3]}..."
