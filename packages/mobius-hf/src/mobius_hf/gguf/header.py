"""Header of a GGUF file -> its metadata and where each tensor lies, everything checked.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3. Counts, then
metadata (key, type, value), then for each tensor name, dimensions from the fastest on, type and
offset; then the data.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mobius_hf.errors import CheckpointError
from mobius_hf.gguf.library import TypeSize, tensor_types

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT_KEY, _ALIGNMENT = "general.alignment", 32
_BOOL, _STRING, _ARRAY = 7, 8, 9
# Value type -> numpy's type string.
_NUMBERS = {
    **{0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4"},
    **{_BOOL: "?", 10: "<u8", 11: "<i8", 12: "<f8"},
}
_DAMAGED = "The file is damaged or not GGUF: download it again."


@dataclasses.dataclass(frozen=True)
class GgufEntry:
    """One tensor of a file.

    Attributes:
        name: Name in the file.
        type: How its numbers are stored.
        shape: Dimensions, the slowest first.
        offset: First byte, counted from the start of the file.
        nbytes: Length in bytes.
    """

    name: str
    type: TypeSize
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclasses.dataclass(frozen=True)
class GgufHeader:
    """What a file says before its data.

    Attributes:
        metadata: Each key's value; arrays are lists.
        entries: Tensors by name, in file order.
    """

    metadata: Mapping[str, Any]
    entries: Mapping[str, GgufEntry]


def read_header(data: mmap.mmap, path: Path) -> GgufHeader:
    """Read the header of a mapped GGUF file.

    Raises:
        CheckpointError: if it is damaged, cut off, or of a version that is not read.
    """
    cursor = _Cursor(data, path)
    if cursor.take(4) != _MAGIC:
        raise CheckpointError(f"{path} does not start with 'GGUF'. {_DAMAGED}")
    version = cursor.integer("<I")
    if version not in _VERSIONS:
        order = " It may be of a big-endian machine." if version & 0xFFFF == 0 else ""
        raise CheckpointError(
            f"{path} is GGUF version {version}; readable: {', '.join(map(str, _VERSIONS))}.{order} "
            "Convert it with a current llama.cpp."
        )
    tensors, keys = cursor.integer("<Q"), cursor.integer("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(keys):
        key = cursor.text()
        if key in metadata:
            raise CheckpointError(f"{path}: the key {key!r} occurs twice. {_DAMAGED}")
        metadata[key] = cursor.value(cursor.integer("<I"))
    found = [cursor.tensor() for _ in range(tensors)]
    alignment = metadata.get(_ALIGNMENT_KEY, _ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise CheckpointError(f"{path}: {_ALIGNMENT_KEY} is {alignment!r}. {_DAMAGED}")
    start = -(-cursor.position // alignment) * alignment
    entries: dict[str, GgufEntry] = {}
    for entry in found:
        if entry.name in entries:
            raise CheckpointError(f"{path}: the tensor {entry.name!r} occurs twice. {_DAMAGED}")
        entries[entry.name] = dataclasses.replace(entry, offset=start + entry.offset)
    _check_length(entries, len(data), path)
    return GgufHeader(metadata, entries)


def _check_length(entries: Mapping[str, GgufEntry], size: int, path: Path) -> None:
    for entry in entries.values():
        if entry.offset + entry.nbytes > size:
            raise CheckpointError(
                f"{path} is truncated: tensor {entry.name!r} ends at byte "
                f"{entry.offset + entry.nbytes}, but the file has {size}. Download it again."
            )


class _Cursor:
    """Reads one thing after the other and never past the end."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._path = path
        self.position = 0

    def take(self, count: int) -> bytes:
        taken = self._data[self.position : self.position + count]
        if len(taken) != count:
            raise CheckpointError(
                f"{self._path} is truncated: {count} bytes are needed at byte {self.position}, but "
                f"the file has {len(self._data)} altogether. Download it again."
            )
        self.position += count
        return taken

    def integer(self, form: str) -> int:
        (value,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return int(value)

    def text(self) -> str:
        data = self.take(self.integer("<Q"))
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"{self._path}: the text that ends at byte {self.position} is not UTF-8 ({error}). "
                f"{_DAMAGED}"
            ) from error

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner, count = self.integer("<I"), self.integer("<Q")
            if inner in _NUMBERS:
                return self._numbers(inner, count).tolist()
            return [self.value(inner) for _ in range(count)]
        number = self._numbers(kind, 1)[0]
        # A float32 as the decimal that it was: 1e-05, not 9.999999747378752e-06.
        return float(str(number)) if number.dtype == np.float32 else number.item()

    def _numbers(self, kind: int, count: int) -> np.ndarray[Any, np.dtype[Any]]:
        if kind not in _NUMBERS:
            raise CheckpointError(
                f"{self._path}: a value before byte {self.position} is of type {kind}, which the "
                f"format does not have. {_DAMAGED}"
            )
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)

    def tensor(self) -> GgufEntry:
        """Read a tensor's description; its offset counts from the start of the data."""
        name = self.text()
        dimensions = [self.integer("<Q") for _ in range(self.integer("<I"))]
        number, offset = self.integer("<I"), self.integer("<Q")
        known = tensor_types().get(number)
        if known is None:
            raise CheckpointError(
                f"{self._path}: tensor {name!r} is of type {number}, which the installed library "
                "gguf does not know. Install a newer one: pip install -U gguf"
            )
        shape = tuple(reversed(dimensions))
        if shape and shape[-1] % known.block:
            raise CheckpointError(
                f"{self._path}: tensor {name!r} has rows of {shape[-1]} numbers, which is no "
                f"multiple of the {known.block} that {known.name} stores together. {_DAMAGED}"
            )
        nbytes = math.prod(shape) // known.block * known.nbytes
        return GgufEntry(name, known, shape, offset, nbytes)
