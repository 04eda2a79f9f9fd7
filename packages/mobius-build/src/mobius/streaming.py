"""Go through a tensor's data a few megabytes at a time, whatever kind of tensor it is.

Data of a tensor that is in a file are read, not mapped: mapped pages count as memory of the
process until someone else needs it, and a file that is cut off is an error instead of a crash.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import ml_dtypes  # noqa: F401  (registers bfloat16 and the 8-bit floats with numpy)
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

__all__ = ["WeightTensor", "is_on_disk", "visit_chunks"]

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

    def _read(self) -> ir.TensorProtocol:
        if self.source.dtype.bitwidth < 8:
            return ir.Tensor(self.convert(self.source.numpy()), dtype=self.dtype, name=self.name)
        array = np.empty(self.shape.numpy(), self.dtype.numpy())
        flat, filled = array.reshape(-1), 0

        def keep(chunk: Chunk) -> None:
            nonlocal filled
            flat[filled : filled + chunk.size] = self.convert(chunk)
            filled += chunk.size

        visit_chunks(self.source, keep)
        if filled != flat.size:
            raise ValueError(f"{self.name!r} has {filled} elements, its shape needs {flat.size}.")
        return ir.Tensor(array, dtype=self.dtype, name=self.name)


def is_on_disk(tensor: ir.TensorProtocol) -> bool:
    """Whether the data of `tensor` are in a file, so that reading them can avoid mapping it."""
    return isinstance(tensor, _OnDisk)


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
    elif tensor.dtype.bitwidth < 8:
        _visit_array(np.frombuffer(tensor.tobytes(), np.uint8), visit)
    elif isinstance(tensor, _OnDisk):
        dtype = np.dtype(tensor.dtype.numpy())
        tensor.tofile(_Sink(dtype.newbyteorder("<"), visit))
    else:
        array = np.ascontiguousarray(tensor.numpy()).reshape(-1)
        if sys.byteorder == "big":
            array = array.astype(array.dtype.newbyteorder("<"))
        _visit_array(array, visit)


def _visit_array(flat: Chunk, visit: Callable[[Chunk], object]) -> None:
    step = max(1, _CHUNK_BYTES // flat.itemsize)
    for start in range(0, flat.size, step):
        visit(flat[start : start + step])


@runtime_checkable
class _OnDisk(Protocol):
    """onnx_ir's ExternalTensor, and the tensors that sources map from a checkpoint."""

    @property
    def path(self) -> object: ...

    def tofile(self, file: Any) -> None: ...


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
