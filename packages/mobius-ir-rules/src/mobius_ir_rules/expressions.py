"""How to compute a weight from other weights: transpose, concat, cast, reshape, slice over leaves.

The leaves are `ir.Value`s that get their data later. An expression knows its dtype and shape from
the start; it computes its data, by numpy, when asked, with as few copies as it can: a source
writes straight into its part of the result, transposed and converted on the way.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np
import onnx_ir as ir

from mobius_ir_rules.tiled_copy import copy

_CAST_TARGETS = frozenset(
    {ir.DataType.DOUBLE, ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
)
_NOT_NUMBERS = frozenset({ir.DataType.STRING, ir.DataType.UNDEFINED})


class UnloadedWeightError(ValueError):
    """Data were read of a weight that has none yet."""


@runtime_checkable
class FillingTensor(Protocol):
    """A tensor that can write its data into an array without having all of them in memory."""

    def fill(self, out: np.ndarray) -> None:
        """Write the data into `out`, of the tensor's size, converted to its dtype.

        Whatever the shape and the strides of `out`, its elements are filled in row-major order.
        """
        ...


def can_cast(source: ir.DataType, target: ir.DataType) -> bool:
    """Whether `Cast` is exact here as ONNX defines it: any number to a 16-bit or wider float.

    Casts to narrower types saturate or truncate as the operator's attributes and the runtime
    say, so they stay in the graph.
    """
    return target in _CAST_TARGETS and source not in _NOT_NUMBERS


class Expression(abc.ABC):
    """How to compute a tensor of a known dtype and shape. Immutable."""

    dtype: ir.DataType
    shape: tuple[int, ...]

    @abc.abstractmethod
    def leaves(self) -> Iterator[ir.Value]:
        """Yield the values that the data come from, in order, repeats included."""

    @abc.abstractmethod
    def array(self) -> np.ndarray:
        """Return the data; a view of a leaf's own data if possible, not to be written to."""

    def fill(self, out: np.ndarray) -> None:
        """Write the data into `out`, of this shape, converted to its dtype."""
        copy(out, self.array())

    def materialize(self) -> np.ndarray:
        """Return the data in a new, C-contiguous array."""
        out = np.empty(self.shape, self.dtype.numpy())
        self.fill(out)
        return out


@dataclasses.dataclass(frozen=True, eq=False)
class Leaf(Expression):
    """The data of `value`, which has a dtype and a static shape, and gets its data later.

    Raises:
        ValueError: If dtype or shape of `value` are unknown.
    """

    value: ir.Value
    dtype: ir.DataType = dataclasses.field(init=False)
    shape: tuple[int, ...] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """Take dtype and shape from the value."""
        dtype, shape = self.value.dtype, static_shape(self.value)
        if dtype is None or shape is None:
            raise ValueError(f"{self.value.name!r} needs a dtype and a static shape")
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", shape)

    def leaves(self) -> Iterator[ir.Value]:
        """Yield the value."""
        yield self.value

    def array(self) -> np.ndarray:
        """Return the value's data.

        Raises:
            UnloadedWeightError: If there are none yet.
            ValueError: If the data are not what the value declares.
        """
        return self._tensor().numpy()

    def fill(self, out: np.ndarray) -> None:
        """Let the tensor write into `out`, of any shape, a part at a time, if it can."""
        tensor = self._tensor()
        if isinstance(tensor, FillingTensor):
            tensor.fill(out)
        else:
            copy(out, tensor.numpy().reshape(out.shape))

    def _tensor(self) -> ir.TensorProtocol:
        tensor = self.value.const_value
        if tensor is None:
            raise UnloadedWeightError(
                f"The weight {self.value.name!r} has no data yet, and a tensor derived from it "
                "was read. Bind the weights first."
            )
        if tensor.dtype != self.dtype or tuple(tensor.shape.numpy()) != self.shape:
            raise ValueError(
                f"The weight {self.value.name!r} is {self.dtype.name}{list(self.shape)}, but its "
                f"data are {tensor.dtype.name}{list(tensor.shape.numpy())}."
            )
        return tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Transpose(Expression):
    """`source` with its axes permuted: axis `i` is the source's axis `perm[i]`."""

    source: Expression
    perm: tuple[int, ...]

    def __post_init__(self) -> None:
        """Derive dtype and shape."""
        object.__setattr__(self, "dtype", self.source.dtype)
        object.__setattr__(self, "shape", tuple(self.source.shape[axis] for axis in self.perm))

    def leaves(self) -> Iterator[ir.Value]:
        """Yield the source's leaves."""
        return self.source.leaves()

    def array(self) -> np.ndarray:
        """Return a transposed view."""
        return self.source.array().transpose(self.perm)

    def fill(self, out: np.ndarray) -> None:
        """Let the source write into a transposed view of `out`."""
        self.source.fill(out.transpose(np.argsort(self.perm)))


@dataclasses.dataclass(frozen=True, eq=False)
class Concat(Expression):
    """`sources`, of one dtype and with equal other dimensions, joined along `axis` (>= 0)."""

    sources: tuple[Expression, ...]
    axis: int

    def __post_init__(self) -> None:
        """Derive dtype and shape."""
        shape = list(self.sources[0].shape)
        shape[self.axis] = sum(source.shape[self.axis] for source in self.sources)
        object.__setattr__(self, "dtype", self.sources[0].dtype)
        object.__setattr__(self, "shape", tuple(shape))

    def leaves(self) -> Iterator[ir.Value]:
        """Yield the leaves of each source in turn."""
        for source in self.sources:
            yield from source.leaves()

    def array(self) -> np.ndarray:
        """Return a new array."""
        return self.materialize()

    def fill(self, out: np.ndarray) -> None:
        """Let each source write its own part, so that one is in memory at a time."""
        start, before = 0, (slice(None),) * self.axis
        for source in self.sources:
            stop = start + source.shape[self.axis]
            source.fill(out[(*before, slice(start, stop))])
            start = stop


@dataclasses.dataclass(frozen=True, eq=False)
class Cast(Expression):
    """`source` as `dtype`, rounded to nearest, ties to even; see `can_cast`."""

    source: Expression
    dtype: ir.DataType

    def __post_init__(self) -> None:
        """Derive the shape."""
        if not can_cast(self.source.dtype, self.dtype):
            raise ValueError(f"No exact cast from {self.source.dtype} to {self.dtype}")
        object.__setattr__(self, "shape", self.source.shape)

    def leaves(self) -> Iterator[ir.Value]:
        """Yield the source's leaves."""
        return self.source.leaves()

    def array(self) -> np.ndarray:
        """Return a new array."""
        return self.materialize()

    def fill(self, out: np.ndarray) -> None:
        """Convert on the way into `out`, unless another cast follows: each one rounds."""
        if out.dtype == self.dtype.numpy():
            self.source.fill(out)
        else:
            copy(out, self.array())


@dataclasses.dataclass(frozen=True, eq=False)
class Reshape(Expression):
    """The elements of `source` in row-major order, in another `shape` of equal size."""

    source: Expression
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Derive the dtype."""
        if math.prod(self.shape) != math.prod(self.source.shape):
            raise ValueError(f"Cannot reshape {self.source.shape} to {self.shape}")
        object.__setattr__(self, "dtype", self.source.dtype)

    def leaves(self) -> Iterator[ir.Value]:
        """Yield the source's leaves."""
        return self.source.leaves()

    def array(self) -> np.ndarray:
        """Return a view where the source is contiguous."""
        array = self.source.array()
        if not array.flags.c_contiguous:
            array = self.source.materialize()
        return array.reshape(self.shape)

    def fill(self, out: np.ndarray) -> None:
        """Let the source write into `out` reshaped, where that is a view or does not matter."""
        if out.flags.c_contiguous:
            self.source.fill(out.reshape(self.source.shape))
        elif isinstance(self.source, Leaf):
            self.source.fill(out)
        else:
            copy(out, self.array())


@dataclasses.dataclass(frozen=True, eq=False)
class Slice(Expression):
    """The part of `source` that `slices`, one an axis, select."""

    source: Expression
    slices: tuple[slice, ...]

    def __post_init__(self) -> None:
        """Derive dtype and shape."""
        lengths = [
            len(range(*part.indices(dim)))
            for part, dim in zip(self.slices, self.source.shape, strict=True)
        ]
        object.__setattr__(self, "dtype", self.source.dtype)
        object.__setattr__(self, "shape", tuple(lengths))

    def leaves(self) -> Iterator[ir.Value]:
        """Yield the source's leaves."""
        return self.source.leaves()

    def array(self) -> np.ndarray:
        """Return a view of the source's data."""
        return self.source.array()[self.slices]


def static_shape(value: ir.Value) -> tuple[int, ...] | None:
    """Return the sizes of the value's dimensions, or None if one is unknown."""
    if value.shape is None or not value.shape.is_static():
        return None
    return tuple(value.shape.numpy())
