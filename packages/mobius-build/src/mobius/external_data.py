"""Layout of a model's external data, the file that holds it, and the proto that refers to it.

A model goes through three steps, none of which changes it:

1. `plan_layout(model)` decides for each initializer whether it is embedded or where its bytes lie.
2. `write_data(layout, path)` writes the bytes, a tensor at a time, each tensor once.
3. `to_external_proto(model, layout)` is the ONNX proto whose initializers point at those bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from mobius.errors import PackageSaveError
from mobius.finite import count_non_finite
from mobius.streaming import computation_of, visit_together
from mobius_ir_rules.lazy import DerivedTensor
from mobius_ir_rules.storage import bytes_of

__all__ = ["DataEntry", "DataLayout", "plan_layout", "to_external_proto", "write_data"]

IR_VERSION = 10
"""Written by number: runtimes refuse files that are newer than they are."""

EMBED_BELOW = 1024
"""Constants smaller than this many bytes stay in the `.onnx` file."""

_PAGE = 4096
_PAGE_ALIGNED_FROM = 1 << 20
_ALIGNMENT = 64


@dataclasses.dataclass(frozen=True, eq=False)
class DataEntry:
    """The bytes of one tensor in a data file.

    Attributes:
        name: Name of the first initializer that uses the tensor.
        tensor: What is written; `None` for a weight that is not loaded.
        location: File name, relative to the `.onnx` file.
        offset: First byte in that file.
        length: Number of bytes.
        is_weight: The tensor comes from a checkpoint, so that its values are checked.
    """

    name: str
    tensor: ir.TensorProtocol | None
    location: str
    offset: int
    length: int
    is_weight: bool


@dataclasses.dataclass(frozen=True)
class DataLayout:
    """Where the initializers of one model go.

    Attributes:
        entries: One for each distinct tensor, in file order.
        by_value: The entry of each initializer that is not embedded.
        size: Bytes of the data file.
    """

    entries: tuple[DataEntry, ...]
    by_value: dict[ir.Value, DataEntry]
    size: int


def plan_layout(
    model: ir.Model,
    location: str,
    weights: frozenset[ir.Value],
    kept: Mapping[ir.Value, DataEntry] = MappingProxyType({}),
) -> DataLayout:
    """Decide where each initializer of `model` goes.

    Weights are never embedded, however small, so that the graph file is the same with and without
    loaded weights. A tensor that several initializers share (the same object, or the same bytes in
    another shape or type) gets one entry. Offsets are multiples of 4096 for tensors of 1 MiB and
    more, so that they can be mapped on their own, and multiples of 64 for the others.

    Args:
        model: The model; not changed.
        location: Name of the data file, relative to the `.onnx` file.
        weights: Initializers that take their values from a checkpoint.
        kept: Initializers whose bytes stay where they are, in some other file.

    Raises:
        PackageSaveError: if an initializer has no data and no static shape and dtype.
    """
    entries: list[DataEntry] = []
    by_value: dict[ir.Value, DataEntry] = {}
    by_bytes: dict[object, DataEntry] = {}
    end = 0
    for value in _initializers(model):
        if value in kept:
            by_value[value] = kept[value]
            continue
        tensor = value.const_value
        leaves = tensor.leaves if isinstance(tensor, DerivedTensor) else (value,)
        is_weight = not weights.isdisjoint(leaves)
        length = _nbytes(value)
        if tensor is not None:
            if _is_embedded(tensor, length, is_weight):
                continue
            if (known := by_bytes.get(_identity(tensor))) is not None:
                by_value[value] = known
                continue
        alignment = _PAGE if length >= _PAGE_ALIGNED_FROM else _ALIGNMENT
        offset = -(-end // alignment) * alignment
        entry = DataEntry(value.name or "", tensor, location, offset, length, is_weight)
        end = offset + length
        entries.append(entry)
        by_value[value] = entry
        if tensor is not None:
            by_bytes[_identity(tensor)] = entry
    return DataLayout(tuple(entries), by_value, end)


def write_data(
    layout: DataLayout,
    path: Path,
    *,
    on_bytes: Callable[[int, str], None] = lambda count, name: None,
    on_non_finite: Callable[[DataEntry, int], None] = lambda entry, count: None,
) -> None:
    """Write every tensor of `layout` to the new file `path`, with two tensors in memory at most.

    Two threads do it, so that one reads and computes while the other waits for the disk.

    Args:
        layout: What to write; every entry needs a tensor.
        path: The file; must not exist.
        on_bytes: Called after every few megabytes with their number and the tensor's name, by one
            thread at a time.
        on_non_finite: Called with each weight that has values that are not finite, and their count,
            in file order.

    Raises:
        OSError: whatever the file system reports.
        PackageSaveError: if a tensor does not have the number of bytes that it announces.
    """
    path.open("xb").close()
    found: dict[DataEntry, int] = {}
    waiting, lock, stop = iter(_groups(layout.entries)), threading.Lock(), threading.Event()
    failures: list[BaseException] = []

    def report(count: int, name: str) -> None:
        with lock:
            if stop.is_set():
                raise _Stopped
            on_bytes(count, name)

    def work(group: Sequence[DataEntry] | None) -> None:
        try:
            while group is not None and not stop.is_set():
                found.update(_write_group(group, path, report))
                with lock:
                    group = next(waiting, None)
        except _Stopped:
            return
        except BaseException as error:
            failures.append(error)
            stop.set()

    # The caller's thread writes too, so that an interruption arrives where the work is done.
    first, second = next(waiting, None), next(waiting, None)
    helper = threading.Thread(target=work, args=(second,), name="mobius-save")
    helper.start()
    work(first)
    try:
        helper.join()
    except BaseException:
        stop.set()
        helper.join()
        raise
    if failures:
        raise failures[0]
    for entry in layout.entries:
        if found[entry]:
            on_non_finite(entry, found[entry])


class _Stopped(Exception):
    """The other thread has failed."""


def _groups(entries: Iterable[DataEntry]) -> list[list[DataEntry]]:
    """Return the entries in file order, those together that one computation fills."""
    groups: dict[object, list[DataEntry]] = {}
    for entry in entries:
        assert entry.tensor is not None  # without weights there is no file
        common = computation_of(entry.tensor)
        groups.setdefault(entry if common is None else common, []).append(entry)
    return list(groups.values())


def _write_group(
    group: Sequence[DataEntry], path: Path, on_bytes: Callable[[int, str], None]
) -> dict[DataEntry, int]:
    """Write tensors to their places; return how many values of each are not finite."""
    with contextlib.ExitStack() as files:
        writers = [
            _EntryWriter(entry, files.enter_context(path.open("r+b")), on_bytes) for entry in group
        ]
        visit_together([(writer.tensor, writer) for writer in writers])
    return {writer.entry: writer.checked() for writer in writers}


class _EntryWriter:
    """Writes the chunks of one tensor; counts values of weights that are not finite."""

    def __init__(
        self, entry: DataEntry, file: BinaryIO, on_bytes: Callable[[int, str], None]
    ) -> None:
        assert entry.tensor is not None
        self.entry = entry
        self.tensor = entry.tensor
        self._file = file
        self._on_bytes = on_bytes
        self._written = 0
        self._non_finite = 0
        file.seek(entry.offset)

    def __call__(self, chunk: npt.NDArray[Any]) -> None:
        self._written += chunk.nbytes
        if self._written > self.entry.length:
            return  # not over the tensor that follows
        if self.entry.is_weight:
            self._non_finite += count_non_finite(chunk)
        self._file.write(chunk.view(np.uint8).data)
        self._on_bytes(chunk.nbytes, self.entry.name)

    def checked(self) -> int:
        """Return the number of values that are not finite, once all chunks have come."""
        if self._written != self.entry.length:
            raise PackageSaveError(
                f"Tensor {self.entry.name!r} gave {self._written} bytes where its shape and dtype "
                f"need {self.entry.length}. The tensor or its file is broken."
            )
        return self._non_finite


def to_external_proto(model: ir.Model, layout: DataLayout) -> onnx.ModelProto:
    """Return the proto of `model` in which initializers refer to external data as `layout` says.

    Works on a copy of the graph: neither the model nor its tensors are changed, so that threads
    may save one model at the same time.
    """
    copy = model.clone()
    copy.ir_version = IR_VERSION
    for original, value in zip(_initializers(model), _initializers(copy), strict=True):
        entry = layout.by_value.get(original)
        if entry is None:
            value.const_value = _embedded(value)
            continue
        value.const_value = ir.ExternalTensor(
            entry.location,
            entry.offset,
            entry.length,
            _dtype(original),
            shape=ir.Shape(_static_shape(original)),
            name=value.name or "",
        )
    proto = ir.to_proto(copy)
    assert isinstance(proto, onnx.ModelProto)
    return proto


def _initializers(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.initializers.values()


def _identity(tensor: ir.TensorProtocol) -> object:
    """Return what tensors have in common that are stored in the same bytes."""
    if isinstance(tensor, DerivedTensor):
        return bytes_of(tensor.expression)
    if isinstance(tensor, ir.ExternalTensor):
        return tensor.path, tensor.offset, tensor.length
    return id(tensor)


def _is_embedded(tensor: ir.TensorProtocol, length: int, is_weight: bool) -> bool:
    if tensor.dtype is ir.DataType.STRING:
        return True  # ONNX has no external form of strings
    # What was external when it was loaded is external again: saving twice gives the same file.
    return length < EMBED_BELOW and not is_weight and not isinstance(tensor, ir.ExternalTensor)


def _dtype(value: ir.Value) -> ir.DataType:
    dtype = value.const_value.dtype if value.const_value is not None else value.dtype
    if dtype is None:
        raise PackageSaveError(
            f"Initializer {value.name!r} has neither data nor a dtype, so its size in the file is "
            "not known. Give the value a type."
        )
    return dtype


def _static_shape(value: ir.Value) -> tuple[int, ...]:
    tensor = value.const_value
    shape = value.shape if tensor is None else tensor.shape
    dims = () if shape is None else tuple(dim for dim in shape if isinstance(dim, int))
    if shape is None or len(dims) != len(shape):
        raise PackageSaveError(
            f"Initializer {value.name!r} has no data and its shape is {shape}, so its size in the "
            "file is not known. Give the value a static shape."
        )
    return dims


def _nbytes(value: ir.Value) -> int:
    dtype = _dtype(value)
    if dtype is ir.DataType.STRING:
        return 0
    return math.ceil(math.prod(_static_shape(value)) * dtype.bitwidth / 8)


def _embedded(value: ir.Value) -> ir.TensorProtocol:
    """Return the tensor of `value` as a new object, since serialising one sets its name."""
    tensor = value.const_value
    assert tensor is not None  # a value without data always has an entry
    if tensor.dtype is ir.DataType.STRING:
        strings = [item.encode() if isinstance(item, str) else item for item in tensor.numpy().flat]
        return ir.StringTensor(strings, shape=ir.Shape(_static_shape(value)), name=value.name)
    return ir.Tensor(
        tensor.numpy(), dtype=tensor.dtype, name=value.name, doc_string=tensor.doc_string
    )
