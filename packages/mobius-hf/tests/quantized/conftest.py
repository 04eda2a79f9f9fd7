"""Weights that are quantized and packed here, number by number, as the formats are documented."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Quantized:
    """A weight `[N, K]` and what it is made of.

    Attributes:
        integers: Unsigned, `[N, K]`.
        zeros: Unsigned, `[N, groups]`.
        scales: float16 `[N, groups]`.
        groups: The group of each column.
        bits: Width of an integer.
    """

    integers: Array
    zeros: Array
    scales: Array
    groups: Array
    bits: int

    @property
    def floats(self) -> Array:
        """The weight, exactly: float32 has the bits for it."""
        differences = self.integers.astype(np.float32) - self.zeros[:, self.groups]
        return differences * self.scales.astype(np.float32)[:, self.groups]


def quantized(
    n: int,
    k: int,
    group: int,
    *,
    bits: int = 4,
    symmetric: bool = False,
    mixed: bool = False,
    seed: int = 0,
) -> Quantized:
    """Return a random weight; with `mixed`, columns of a group do not follow each other."""
    random = np.random.default_rng(seed)
    count = -(-k // group)
    groups = np.arange(k) // group
    if mixed:
        groups = random.permutation(groups)
    middle = 1 << (bits - 1)
    zeros = random.integers(0, 2 * middle, (n, count))
    return Quantized(
        random.integers(0, 2 * middle, (n, k)),
        np.full((n, count), middle) if symmetric else zeros,
        (random.uniform(0.5, 1.5, (n, count)) / (2 * middle * k**0.5)).astype(np.float16),
        groups,
        bits,
    )


def words_of(integers: Array, bits: int) -> Array:
    """Return integers of the last axis in int32 words, the first in the lowest bits."""
    count = 32 // bits
    width = -(-integers.shape[-1] // count)
    words = np.zeros((*integers.shape[:-1], width), np.int64)
    for index in range(integers.shape[-1]):
        place = bits * (index % count)
        words[..., index // count] |= integers[..., index].astype(np.int64) << place
    return (words & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def tensors(arrays: dict[str, Array], module: str = "m") -> dict[str, ir.TensorProtocol]:
    """Return tensors by their names in a checkpoint."""
    return {f"{module}.{name}": ir.tensor(array, name=name) for name, array in arrays.items()}


@pytest.fixture(name="quantized")
def _quantized() -> Any:
    return quantized


@pytest.fixture(name="words_of")
def _words_of() -> Any:
    return words_of


@pytest.fixture(name="tensors")
def _tensors() -> Any:
    return tensors
