"""Checks that the parts of a configuration share: a wrong field in, a `ConfigError` out."""

from __future__ import annotations

import math

from mobius_components.activations import ACTIVATIONS
from mobius_components.config_error import ConfigError


def check_counts(config: object, *fields: str) -> None:
    """Check that each field is an integer of at least 1.

    Raises:
        ConfigError: naming the first field that is not.
    """
    for field in fields:
        value = getattr(config, field)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise unfit(config, field, "an integer of at least 1")


def check_taps(config: object, field: str) -> None:
    """Check that a convolution reaches back: with one tap there is nothing to carry.

    Raises:
        ConfigError: if the field is not an integer of at least 2.
    """
    taps = getattr(config, field)
    if isinstance(taps, bool) or not isinstance(taps, int) or taps < 2:
        raise unfit(config, field, "an integer of at least 2")


def check_flags(config: object, *fields: str) -> None:
    """Check that each field is a boolean.

    Raises:
        ConfigError: naming the first field that is not.
    """
    for field in fields:
        if not isinstance(getattr(config, field), bool):
            raise unfit(config, field, "True or False")


def check_positive(config: object, *fields: str) -> None:
    """Check that each field is a number above zero, and not infinite.

    Raises:
        ConfigError: naming the first field that is not.
    """
    for field in fields:
        if not is_finite(getattr(config, field)) or getattr(config, field) <= 0:
            raise unfit(config, field, "a number above zero")


def is_finite(value: object) -> bool:
    """Return whether `value` is a number that is neither infinite nor NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_activation(config: object, field: str) -> None:
    """Check that a field names an activation without parameters.

    Raises:
        ConfigError: if it does not.
    """
    if getattr(config, field) not in ACTIVATIONS:
        raise unfit(config, field, f"one of {', '.join(ACTIVATIONS)}")


def check_divides(config: object, divisor: str, field: str) -> None:
    """Check that one field is a multiple of another.

    Raises:
        ConfigError: if it is not.
    """
    if getattr(config, field) % getattr(config, divisor):
        needed = f"a divisor of {field}, which is {getattr(config, field)}"
        raise unfit(config, divisor, needed)


def unfit(config: object, field: str, needed: str) -> ConfigError:
    """Return the error for a field of `config` with a value that cannot be used."""
    return ConfigError(field, getattr(config, field), needed, type(config).__name__)
