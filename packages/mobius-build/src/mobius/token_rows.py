"""Which numbers of an output belong to which tokens."""

from __future__ import annotations

import numpy as np

from mobius.dims import part_of
from mobius.ort import Array, Port
from mobius.random_inputs import Scenario

__all__ = ["has_last_alone", "last_tokens", "real_tokens"]

_TOKENS = 1


def has_last_alone(port: Port, other: Port) -> bool:
    """Return whether an output is of each row's last token, and the other model's of all tokens."""
    return (
        len(port.shape) == len(other.shape) > _TOKENS
        and port.shape[_TOKENS] == 1
        and part_of(other, _TOKENS) == "sequence"
    )


def last_tokens(value: Array, scenario: Scenario) -> Array:
    """Return of `[batch, sequence, ...]` each row's last real token, `[batch, 1, ...]`."""
    mask = scenario.mask(value.shape[0])[:, scenario.sizes.past :]
    last = (mask * np.arange(mask.shape[1])).max(axis=1, keepdims=True)
    picked: Array = np.take_along_axis(
        value, last.reshape(*last.shape, *(1,) * (value.ndim - 2)), axis=_TOKENS
    )
    return picked


def real_tokens(port: Port, shape: tuple[int, ...], scenario: Scenario) -> Array | None:
    """Return which numbers of an output belong to real tokens; `None` for all of them.

    The axis of tokens is that named so, or for want of names the one that has the size.
    """
    if not scenario.padded or len(shape) < 2 or shape[0] != scenario.sizes.batch:
        return None
    cache = scenario.comparable(shape[0])
    tokens = scenario.mask(shape[0])[:, scenario.sizes.past :]
    for axis in range(1, len(shape)):
        part = part_of(port, axis)
        unnamed = part is None and not isinstance(port.shape[axis], int)
        for mask, name in ((cache, "total"), (tokens, "sequence")):
            if shape[axis] == mask.shape[1] and (part == name or unnamed):
                broadcast = [1] * len(shape)
                broadcast[0], broadcast[axis] = mask.shape
                return mask.astype(bool).reshape(broadcast)
    return None
