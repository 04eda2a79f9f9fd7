"""Safetensors file -> tensors that stay on disk: memory-mapped, read when asked for, not before."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from mobius_hf.errors import CheckpointError
from mobius_hf.safetensors_header import TensorEntry, read_header


class MappedTensor(ir.Tensor[npt.NDArray[Any]]):
    """A tensor inside a memory-mapped file.

    Its array is a read-only view of the mapping, with an ml_dtypes type for what numpy lacks, like
    bfloat16. Only the pages that are touched are read.

    Attributes:
        path: The file.
        offset: First byte in it.
    """

    __slots__ = ("_entry", "_map", "offset", "path")

    def __init__(self, name: str, entry: TensorEntry, path: Path, mapping: mmap.mmap) -> None:
        super().__init__(_view(entry, mapping), entry.dtype, name=name)
        self._entry = entry
        self._map = mapping
        self.offset = entry.offset
        self.path = path

    def renamed(self, name: str) -> MappedTensor:
        """Return the same bytes as a tensor called `name`."""
        return MappedTensor(name, self._entry, self.path, self._map)

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """Return `numpy()`, converted or copied as numpy asks."""
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def tobytes(self) -> bytes:
        """Return a copy of the bytes."""
        return self._map[self.offset : self.offset + self.nbytes]

    def tofile(self, file: Any) -> None:
        """Write the bytes to a binary file, in the kernel where it can copy between the two."""
        # An empty base_dir: the path was decided when the checkpoint was opened, and a hub cache
        # is made of links, which ExternalTensor would refuse below a base_dir.
        ir.ExternalTensor(
            self.path, self.offset, self.nbytes, self.dtype, shape=self.shape, name=str(self.name)
        ).tofile(file)

    def __repr__(self) -> str:
        """Return name, type, shape and place."""
        return f"{self._repr_base()}({self.name!r} in {self.path} at byte {self.offset})"


def _view(entry: TensorEntry, mapping: mmap.mmap) -> npt.NDArray[Any]:
    # Safetensors data is little-endian whatever the machine is.
    dtype = np.dtype(entry.dtype.numpy()).newbyteorder("<")
    if entry.nbytes == 0:
        return np.empty(entry.shape, dtype)
    count = math.prod(entry.shape)
    return np.frombuffer(mapping, dtype, count, entry.offset).reshape(entry.shape)


def open_safetensors(path: Path) -> Mapping[str, MappedTensor]:
    """Map `path` and return its tensors by name. Only the header is read.

    Raises:
        CheckpointError: if the file is damaged or cannot be opened.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            entries = read_header(file, path, size)
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CheckpointError(f"Cannot open the weights file {path}: {error}") from error
    return {name: MappedTensor(name, entry, path, mapping) for name, entry in entries.items()}
