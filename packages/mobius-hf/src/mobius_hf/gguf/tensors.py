"""GGUF files -> metadata, and tensors that stay on disk until they are read."""

from __future__ import annotations

import dataclasses
import math
import mmap
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from mobius_hf.errors import CheckpointError
from mobius_hf.gguf.header import GgufEntry, GgufHeader, read_header
from mobius_hf.gguf.library import can_dequantize, dequantize
from mobius_hf.mapped_tensor import MappedTensor
from mobius_hf.safetensors_header import TensorEntry

_PLAIN = {
    "F32": ir.DataType.FLOAT,
    "F16": ir.DataType.FLOAT16,
    "BF16": ir.DataType.BFLOAT16,
    "F64": ir.DataType.DOUBLE,
    "I8": ir.DataType.INT8,
    "I16": ir.DataType.INT16,
    "I32": ir.DataType.INT32,
    "I64": ir.DataType.INT64,
}
_CHUNK_NUMBERS = 1 << 20
_PART = re.compile(r"(.*-)(\d{5})(-of-)(\d{5})(\.gguf)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class GgufFile:
    """An opened model.

    Attributes:
        path: The file, or the first of several.
        metadata: Each key's value.
        tensors: Tensors by their names in the file.
        types: How each is stored, as llama.cpp names it.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, ir.TensorProtocol]
    types: Mapping[str, str]


class QuantizedTensor(ir.LazyTensor):
    """A tensor of blocks of integers with scales: float32 when it is read, a few rows at a time.

    Attributes:
        path: The file that holds it.
    """

    def __init__(self, entry: GgufEntry, path: Path) -> None:
        shape = ir.Shape(entry.shape)
        super().__init__(self._read, ir.DataType.FLOAT, shape, name=entry.name)
        self._entry = entry
        self.path = path

    def visit(self, visit: Callable[[npt.NDArray[np.float32]], object]) -> None:
        """Call `visit` with flat parts of the numbers, one after the other.

        Raises:
            OSError: if the file cannot be read, or is too short.
        """
        width = self._entry.shape[-1]
        row_bytes = width // self._entry.type.block * self._entry.type.nbytes
        rows = math.prod(self._entry.shape[:-1])
        step = max(1, _CHUNK_NUMBERS // width)
        with self.path.open("rb") as file:
            file.seek(self._entry.offset)
            for start in range(0, rows, step):
                count = min(step, rows - start)
                data = file.read(count * row_bytes)
                if len(data) != count * row_bytes:
                    raise OSError(f"{self.path} has become shorter while {self.name!r} was read")
                blocks = np.frombuffer(data, np.uint8).reshape(count, row_bytes)
                visit(dequantize(blocks, self._entry.type).reshape(-1))

    def __repr__(self) -> str:
        """Return name, type, shape and place."""
        stored = self._entry.type.name
        return f"QuantizedTensor<{stored},{self.shape}>({self.name!r} in {self.path})"

    def _read(self) -> ir.TensorProtocol:
        numbers = np.empty(self.shape.numpy(), np.float32)
        flat, filled = numbers.reshape(-1), 0

        def keep(part: npt.NDArray[np.float32]) -> None:
            nonlocal filled
            flat[filled : filled + part.size] = part
            filled += part.size

        self.visit(keep)
        return ir.Tensor(numbers, name=self.name)


def open_gguf(path: Path) -> GgufFile:
    """Open a GGUF file, with its other parts if it is one of several. Only headers are read.

    Raises:
        CheckpointError: if a file is damaged or missing, or holds a type that is not dequantised.
        GgufMissingError: if the library gguf is not installed.
    """
    header, mapping = _open(path)
    files = [(path, header, mapping)]
    count = header.metadata.get("split.count", 1)
    if count > 1:
        first, *others = _parts(path, count)
        files = [(each, *_open(each)) for each in (first, *others)]
    tensors: dict[str, ir.TensorProtocol] = {}
    types: dict[str, str] = {}
    for file, head, data in files:
        for entry in head.entries.values():
            if entry.name in tensors:
                raise CheckpointError(f"{file}: the tensor {entry.name!r} is in another part too.")
            tensors[entry.name] = _tensor(entry, file, data)
            types[entry.name] = entry.type.name
    return GgufFile(files[0][0], files[0][1].metadata, tensors, types)


def _open(path: Path) -> tuple[GgufHeader, mmap.mmap]:
    try:
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                raise CheckpointError(f"{path} is empty. Download it again.")
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CheckpointError(f"Cannot open the GGUF file {path}: {error}") from error
    return read_header(mapping, path), mapping


def parts_of(name: str) -> list[str]:
    """Return the names of all parts of the model that the part `name` is of; itself if it is none.

    Args:
        name: As in `model-00001-of-00003.gguf`, with a folder in front or not.
    """
    match = _PART.fullmatch(name)
    if match is None:
        return [name]
    count = int(match[4])
    return [f"{match[1]}{part:05}{match[3]}{match[4]}{match[5]}" for part in range(1, count + 1)]


def _parts(path: Path, count: int) -> list[Path]:
    names = parts_of(path.name)
    if len(names) != count:
        raise CheckpointError(
            f"{path} is one of {count} parts, but its name does not end in "
            f"-00001-of-{count:05}.gguf as the names of parts do. Give the parts their names back."
        )
    parts = [path.with_name(name) for name in names]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise CheckpointError(
            f"{path} is one of {count} parts, but {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not beside it. Download what is missing."
        )
    return parts


def _tensor(entry: GgufEntry, path: Path, mapping: mmap.mmap) -> ir.TensorProtocol:
    dtype = _PLAIN.get(entry.type.name)
    if dtype is not None:
        plain = TensorEntry(entry.name, dtype, entry.shape, entry.offset, entry.nbytes)
        return MappedTensor(entry.name, plain, path, mapping)
    if not can_dequantize(entry.type):
        raise CheckpointError(
            f"{path}: tensor {entry.name!r} is of type {entry.type.name}, which the installed "
            "library gguf cannot dequantise. Use a file of another type, or a newer gguf."
        )
    return QuantizedTensor(entry, path)
