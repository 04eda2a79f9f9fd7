"""Go through a tensor's data a few megabytes at a time, whatever kind of tensor it is.

Data of a tensor that is in a file are read, not mapped: mapped pages count as memory of the
process until someone else needs it, and a file that is cut off is an error instead of a crash.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Protocol, runtime_checkable

import ml_dtypes  # noqa: F401  (registers bfloat16 and the 8-bit floats with numpy)
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from mobius_ir_rules import quantized_weights
from mobius_ir_rules.lazy import DerivedTensor, Expression, Leaf, Reshape, Slice
from mobius_ir_rules.storage import bytes_of
from mobius_ir_rules.tiled_copy import copy
from mobius_ir_rules.visiting import VisitedExpression, VisitedTensor

__all__ = [
    "InFile",
    "WeightTensor",
    "computation_of",
    "in_file",
    "visit_chunks",
    "visit_together",
]

Chunk = npt.NDArray[Any]

_CHUNK_BYTES = 4 << 20


class WeightTensor(ir.LazyTensor):
    """A checkpoint's tensor in the dtype of its parameter: read each time, and never kept.

    Values beyond the range of the new dtype become infinite; who writes the tensor checks that.

    Attributes:
        source: The tensor of the checkpoint.
    """

    source: ir.TensorProtocol

    def __init__(self, source: ir.TensorProtocol, dtype: ir.DataType) -> None:
        self.source = source
        shape = ir.Shape(source.shape.numpy())
        super().__init__(self._read, dtype=dtype, shape=shape, name=source.name)

    def convert(self, array: Chunk) -> Chunk:
        """Return elements of the source in this tensor's dtype, rounded to nearest even."""
        if self.dtype is self.source.dtype:
            return array
        with np.errstate(over="ignore", invalid="ignore"):
            return array.astype(self.dtype.numpy())

    def fill(self, out: Chunk) -> None:
        """Write the data into `out`, of this size, in row-major order, converted to its dtype.

        Raises:
            OSError: if the tensor's file cannot be read, or is too short.
            ValueError: if the source has fewer elements than its shape says.
        """
        filled = 0

        def put(chunk: Chunk) -> None:
            nonlocal filled
            _assign(out, filled, chunk)
            filled += chunk.size

        visit_chunks(self, put)
        if filled != out.size:
            raise ValueError(f"{self.name!r} has {filled} elements, its shape needs {out.size}.")

    def visit(self, visit: Callable[[Chunk], object]) -> None:
        """Call `visit` with every part of the data; see `visit_chunks`."""
        visit_chunks(self, visit)

    def __repr__(self) -> str:
        """Return the dtype and what it is read from."""
        return f"WeightTensor<{self.dtype},{self.shape}>(source={self.source!r})"

    def _read(self) -> ir.TensorProtocol:
        if self.source.dtype.bitwidth < 8:
            return ir.Tensor(self.convert(self.source.numpy()), dtype=self.dtype, name=self.name)
        array = np.empty(self.shape.numpy(), self.dtype.numpy())
        self.fill(array)
        return ir.Tensor(array, dtype=self.dtype, name=self.name)


def in_file(tensor: ir.TensorProtocol | None) -> InFile | None:
    """Return a tensor whose bytes lie in a file and are those of `tensor`; `None` if there is none.

    That is the tensor itself, what a `WeightTensor` leaves as it is, or a part of it whose bytes
    follow each other there: all of them in another shape, or some of its rows.
    """
    if isinstance(tensor, WeightTensor):
        return in_file(tensor.source) if tensor.dtype is tensor.source.dtype else None
    if isinstance(tensor, DerivedTensor):
        return _range_in_file(tensor.expression)
    return tensor if isinstance(tensor, InFile) else None


def _range_in_file(expression: Expression) -> InFile | None:
    """Return the bytes of `expression` in a file, if it is a leaf, reshaped, or rows of one."""
    if isinstance(expression, Leaf):
        return in_file(expression.value.const_value)
    if isinstance(expression, Reshape):
        return _range_in_file(expression.source)
    if not isinstance(expression, Slice) or expression.dtype.bitwidth < 8:
        return None
    whole, source = _range_in_file(expression.source), expression.source
    start, _, step = expression.slices[0].indices(source.shape[0])
    # Other axes may be sliced in full only; a negative step would turn them round.
    steps = {step, *(part.indices(1)[2] for part in expression.slices[1:])}
    if whole is None or steps != {1} or expression.shape[1:] != source.shape[1:]:
        return None
    row = math.prod(expression.shape[1:]) * expression.dtype.bitwidth // 8
    external = whole if isinstance(whole, ir.ExternalTensor) else None
    return ir.ExternalTensor(
        whole.path if external is None else external.location,
        (whole.offset or 0) + start * row,
        expression.shape[0] * row,
        expression.dtype,
        shape=ir.Shape(expression.shape),
        name="",
        base_dir="" if external is None else external.base_dir,
    )


def visit_chunks(tensor: ir.TensorProtocol, visit: Callable[[Chunk], object]) -> None:
    """Call `visit` with every part of `tensor` in row-major order.

    Args:
        tensor: The tensor. At most one copy of its data is in memory at a time, and none if it is
            in a file, or a `WeightTensor` of one that is.
        visit: Takes a flat contiguous array of the tensor's dtype; of bytes as ONNX stores them,
            if elements are smaller than a byte. Must not keep it.

    Raises:
        OSError: if the tensor's file cannot be read, or is too short.
    """
    if isinstance(tensor, WeightTensor):
        visit_chunks(tensor.source, lambda chunk: visit(tensor.convert(chunk)))
    elif (parts := _comes_in_parts(tensor)) is not None:
        parts.visit(lambda part: _visit_array(part, visit))
    elif isinstance(tensor, VisitedTensor):
        tensor.visit(lambda part: _visit_array(part, visit))
    elif tensor.dtype.bitwidth < 8:
        _visit_array(np.frombuffer(tensor.tobytes(), np.uint8), visit)
    elif (found := in_file(tensor)) is not None:
        dtype = np.dtype(tensor.dtype.numpy())
        found.tofile(_Sink(dtype.newbyteorder("<"), visit))
    else:
        array = np.ascontiguousarray(tensor.numpy()).reshape(-1)
        if sys.byteorder == "big":
            array = array.astype(array.dtype.newbyteorder("<"))
        _visit_array(array, visit)


def _comes_in_parts(tensor: ir.TensorProtocol) -> VisitedExpression | None:
    """Return an expression with the bytes of `tensor`, if it computes them a part at a time."""
    if not isinstance(tensor, DerivedTensor):
        return None
    expression = bytes_of(tensor.expression)
    return expression if isinstance(expression, VisitedExpression) else None


def computation_of(tensor: ir.TensorProtocol) -> object | None:
    """Return what `tensor` has in common with others that are best visited together, if it has."""
    parts = _comes_in_parts(tensor)
    return None if parts is None else quantized_weights.computation_of(parts)


def visit_together(visits: Sequence[tuple[ir.TensorProtocol, Callable[[Chunk], object]]]) -> None:
    """Call each `visit` with every part of its tensor, as `visit_chunks` does.

    Args:
        visits: One tensor, or several with the same `computation_of`, which is done once.
    """
    if len(visits) == 1:
        visit_chunks(*visits[0])
        return
    joint: dict[Expression, Callable[[Chunk], object]] = {}
    for tensor, visit in visits:
        parts = _comes_in_parts(tensor)
        assert parts is not None  # it has a computation
        joint[parts] = functools.partial(_visit_array, visit=visit)
    quantized_weights.visit_together(joint)


def _visit_array(flat: Chunk, visit: Callable[[Chunk], object]) -> None:
    step = max(1, _CHUNK_BYTES // flat.itemsize)
    for start in range(0, flat.size, step):
        visit(flat[start : start + step])


def _assign(out: Chunk, start: int, values: Chunk) -> None:
    """Write flat `values` into `out` from its element `start` on, in row-major order."""
    if out.flags.c_contiguous:
        copy(out.reshape(-1)[start : start + values.size], values)
        return
    if out.ndim == 1:
        copy(out[start : start + values.size], values)
        return
    width = math.prod(out.shape[1:])
    while values.size:
        row, at = divmod(start, width)
        if at or values.size < width:
            count = min(width - at, values.size)
            _assign(out[row], at, values[:count])
        else:
            rows = values.size // width
            count = rows * width
            copy(out[row : row + rows], values[:count].reshape(rows, *out.shape[1:]))
        start, values = start + count, values[count:]


@runtime_checkable
class InFile(Protocol):
    """A tensor whose bytes, as ONNX stores them, lie one after the other in a file.

    onnx_ir's ExternalTensor, and the tensors that sources map from a checkpoint.
    """

    @property
    def path(self) -> str | PathLike[str]:
        """The file."""
        ...

    @property
    def offset(self) -> int | None:
        """First byte in it; `None` is 0."""
        ...

    @property
    def nbytes(self) -> int:
        """How many."""
        ...

    def tofile(self, file: Any) -> None:
        """Write them to `file`."""
        ...


class _Sink:
    """What `tofile` needs of a file, passing the elements on."""

    def __init__(self, dtype: np.dtype[Any], visit: Callable[[Chunk], object]) -> None:
        self._dtype = dtype
        self._visit = visit
        self._rest = b""

    def write(self, data: bytes) -> int:
        """Pass on all whole elements; a part of one waits for the next call."""
        joined = self._rest + data if self._rest else data
        count = len(joined) // self._dtype.itemsize
        self._rest = bytes(joined[count * self._dtype.itemsize :])
        if count:
            self._visit(np.frombuffer(joined, self._dtype, count))
        return len(data)
