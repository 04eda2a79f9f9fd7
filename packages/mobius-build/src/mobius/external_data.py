"""Layout of a model's external data, the file that holds it, and the proto that refers to it.

A model goes through three steps, none of which changes it:

1. `plan_layout(model)` decides for each initializer whether it is embedded or where its bytes lie.
2. `write_data(layout, file)` writes the bytes, one tensor at a time, each tensor once.
3. `to_external_proto(model, layout)` is the ONNX proto whose initializers point at those bytes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from mobius.errors import PackageSaveError
from mobius.finite import count_non_finite
from mobius.streaming import visit_chunks
from mobius_ir_rules.lazy import DerivedTensor

__all__ = ["DataEntry", "DataLayout", "plan_layout", "to_external_proto", "write_data"]

IR_VERSION = 10
"""Written by number: runtimes refuse files that are newer than they are."""

EMBED_BELOW = 1024
"""Constants smaller than this many bytes stay in the `.onnx` file."""

_PAGE = 4096
_PAGE_ALIGNED_FROM = 1 << 20
_ALIGNMENT = 64


@dataclasses.dataclass(frozen=True)
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
    loaded weights. A tensor that several initializers share (by identity) gets one entry. Offsets
    are multiples of 4096 for tensors of 1 MiB and more, so that they can be mapped on their own,
    and multiples of 64 for the others.

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
    by_tensor: dict[int, DataEntry] = {}
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
            if (known := by_tensor.get(id(tensor))) is not None:
                by_value[value] = known
                continue
        alignment = _PAGE if length >= _PAGE_ALIGNED_FROM else _ALIGNMENT
        offset = -(-end // alignment) * alignment
        entry = DataEntry(value.name or "", tensor, location, offset, length, is_weight)
        end = offset + length
        entries.append(entry)
        by_value[value] = entry
        if tensor is not None:
            by_tensor[id(tensor)] = entry
    return DataLayout(tuple(entries), by_value, end)


def write_data(
    layout: DataLayout,
    file: BinaryIO,
    *,
    on_bytes: Callable[[int, str], None] = lambda count, name: None,
    on_non_finite: Callable[[DataEntry, int], None] = lambda entry, count: None,
) -> None:
    """Write every tensor of `layout` to `file`, holding one tensor in memory at a time.

    Args:
        layout: What to write; every entry needs a tensor.
        file: A new file, open for writing in binary mode, at position 0.
        on_bytes: Called after every few megabytes with their number and the tensor's name.
        on_non_finite: Called with each weight that has values that are not finite, and their count.

    Raises:
        OSError: whatever the file system reports.
        PackageSaveError: if a tensor does not have the number of bytes that it announces.
    """
    for entry in layout.entries:
        file.seek(entry.offset)
        writer = _TensorWriter(entry, file, on_bytes)
        assert entry.tensor is not None  # without weights there is no file
        visit_chunks(entry.tensor, writer)
        if writer.written != entry.length:
            raise PackageSaveError(
                f"Tensor {entry.name!r} gave {writer.written} bytes where its shape and dtype need "
                f"{entry.length}. The tensor or its file is broken."
            )
        if writer.non_finite:
            on_non_finite(entry, writer.non_finite)
    file.flush()


class _TensorWriter:
    """Writes the chunks of one tensor; counts bytes, and values of weights that are not finite."""

    def __init__(
        self, entry: DataEntry, file: BinaryIO, on_bytes: Callable[[int, str], None]
    ) -> None:
        self._entry = entry
        self._file = file
        self._on_bytes = on_bytes
        self.written = 0
        self.non_finite = 0

    def __call__(self, chunk: npt.NDArray[Any]) -> None:
        if self._entry.is_weight:
            self.non_finite += count_non_finite(chunk)
        self._file.write(chunk.view(np.uint8).data)
        self.written += chunk.nbytes
        self._on_bytes(chunk.nbytes, self._entry.name)


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
