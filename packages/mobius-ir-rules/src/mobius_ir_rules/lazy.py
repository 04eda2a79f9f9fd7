"""Weights that are computed from other weights: an expression over values -> a lazy tensor.

A pass that moves a weight (transposes, packs, casts it) has no data to move: weights are bound
after the graph is final, and are often larger than memory. It writes down what to do instead. A
`DerivedTensor` is that expression with a dtype and a shape; its data exist only while they are
read, which is while saving, one tensor at a time. Peak memory of a read is the result and one
leaf, and no data are cached.

The leaves are `ir.Value`s: the weights as the checkpoint has them, under their own names. Once
derived from, a leaf belongs to no graph, so whoever binds weights must look it up with
`weight_values`.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

# A transposed copy walks tiles of this many elements (along the source's contiguous axis, along
# the result's): 16 float32 are a cache line. 6 times faster than numpy's own copy for a 4096 x
# 4096 matrix.
_TILE = (1024, 16)

_CAST_TARGETS = frozenset(
    {ir.DataType.DOUBLE, ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
)
_NOT_NUMBERS = frozenset({ir.DataType.STRING, ir.DataType.UNDEFINED})


class UnloadedWeightError(ValueError):
    """Data were read of a weight that has none yet."""


def is_small_materialized(tensor: ir.TensorProtocol | None, limit: int) -> bool:
    """Whether `tensor` has at most `limit` bytes and its data are in memory already.

    Lazy, external and derived tensors are never "materialized", whatever their size: reading one
    may open a file or compute something. Asking reads no data.
    """
    if isinstance(tensor, ir.StringTensor):
        return sum(map(len, tensor.string_data())) <= limit
    if isinstance(tensor, ir.Tensor):
        return isinstance(tensor.raw, np.ndarray) and tensor.nbytes <= limit
    return isinstance(tensor, (ir.TensorProtoTensor, ir.PackedTensor)) and tensor.nbytes <= limit


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
        _copy(out, self.array())

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
        dtype, shape = self.value.dtype, _static_shape(self.value)
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
        return tensor.numpy()


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
            _copy(out, self.array())


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
        """Let the source write into `out` reshaped, where that is a view."""
        if out.flags.c_contiguous:
            self.source.fill(out.reshape(self.source.shape))
        else:
            _copy(out, self.array())


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


class DerivedTensor(ir.LazyTensor):
    """A tensor whose data an expression computes anew at each read. Safe to read from threads.

    `numpy()`, `tobytes()` and `tofile()` raise `UnloadedWeightError` if a leaf has no data yet, and
    ValueError if a leaf's data are not of its declared dtype and shape.

    Attributes:
        expression: What to compute.
    """

    def __init__(self, expression: Expression, name: str | None = None) -> None:
        """Store the expression; nothing is computed.

        Args:
            expression: What to compute.
            name: The tensor's name, that of the value that holds it.
        """
        shape = ir.Shape(expression.shape, frozen=True)
        super().__init__(self._materialize, expression.dtype, shape, name=name)
        self.expression = expression

    @property
    def leaves(self) -> tuple[ir.Value, ...]:
        """The weights that the data come from, each once, in order of first use."""
        return tuple(dict.fromkeys(self.expression.leaves()))

    def is_ready(self) -> bool:
        """Whether every leaf has data."""
        return all(
            leaf.const_value.is_ready()
            if isinstance(leaf.const_value, DerivedTensor)
            else leaf.const_value is not None
            for leaf in self.leaves
        )

    def _materialize(self) -> ir.TensorProtocol:
        return ir.Tensor(self.expression.materialize(), dtype=self.dtype)

    def __repr__(self) -> str:
        """Say what the tensor is derived from, without computing it."""
        names = ", ".join(repr(leaf.name) for leaf in self.leaves)
        return f"DerivedTensor<{self.dtype},{self.shape}>(name={self.name!r}, leaves=[{names}])"


def expression_of(value: ir.Value) -> Expression | None:
    """Return how to compute the data of an initializer, or None if dtype or shape are unknown.

    The expression of a derived initializer is its own, so that expressions of expressions have
    checkpoint weights as leaves.
    """
    if isinstance(value.const_value, DerivedTensor):
        return value.const_value.expression
    if value.dtype is None or _static_shape(value) is None:
        return None
    return Leaf(value)


def weight_values(model: ir.Model) -> dict[str, ir.Value]:
    """Return the values to bind weights to, by checkpoint name, in graph order.

    That is each initializer of each graph of `model`, and in place of a derived one the leaves
    that it is derived from.
    """
    values: dict[str, ir.Value] = {}
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if isinstance(value.const_value, DerivedTensor):
                values.update((str(leaf.name), leaf) for leaf in value.const_value.leaves)
            else:
                values[name] = value
    return values


def _static_shape(value: ir.Value) -> tuple[int, ...] | None:
    if value.shape is None or not value.shape.is_static():
        return None
    return tuple(value.shape.numpy())


def _copy(out: np.ndarray, source: np.ndarray) -> None:
    """Copy `source` to `out`, of equal shape, converting; in tiles if one is the transpose."""
    if out.dtype == source.dtype and out.dtype.kind == "V":
        # The dtypes of ml_dtypes: numpy copies plain integers of that width faster.
        bits = np.dtype(f"u{out.itemsize}")
        out, source = out.view(bits), source.view(bits)
    if out.ndim > 2 and _order(out)[0] == _order(source)[0] == 0:
        for out_part, source_part in zip(out, source, strict=True):
            _copy(out_part, source_part)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        for index in _tiles(out, source):
            np.copyto(out[index], source[index], casting="unsafe")


def _order(array: np.ndarray) -> Sequence[int]:
    """Return the axes from the slowest to the fastest in memory."""
    return sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))


def _tiles(out: np.ndarray, source: np.ndarray) -> Iterator[Any]:
    """Yield the indices of the parts to copy one after the other."""
    if out.ndim != 2 or min(out.shape) < _TILE[1] or _order(out) == _order(source):
        yield ...
        return
    steps = _TILE if _order(out) == [0, 1] else _TILE[::-1]
    for row in range(0, out.shape[0], steps[0]):
        for column in range(0, out.shape[1], steps[1]):
            yield (slice(row, row + steps[0]), slice(column, column + steps[1]))
