"""`weights="reference"`: which weights stay in the files that they are in, and where those lie.

A safetensors file holds plain little-endian tensors, as external data of ONNX are. A weight that no
stage changes, in the checkpoint's own dtype, need not be written again: the graph points into that
file. ONNX Runtime 1.32 and onnx_ir read external data from the graph's folder and those below it
alone, after links are resolved, so the file must lie there or be copied there. ONNX Runtime (CPU),
OpenVINO, tract and onnx's reference evaluator read data at any byte; what is not a multiple of its
element's size is written anew all the same, for no C program may read it where it is.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from mobius.errors import PackageSaveError
from mobius.external_data import DataEntry
from mobius.finite import count_non_finite
from mobius.streaming import in_file, visit_chunks
from mobius_ir_rules.lazy import DerivedTensor

__all__ = ["COPY", "References", "check_finite", "copy_file", "find_references", "refers"]

COPY = "copy"
REFERENCE = "reference"

_CHUNK_BYTES = 16 << 20


def refers(weights: str) -> bool:
    """Return whether a way to save weights leaves them where they are.

    Raises:
        PackageSaveError: if it is not `"copy"` or `"reference"`.
    """
    if weights not in (COPY, REFERENCE):
        raise PackageSaveError(f"weights is {weights!r}; needed: {COPY!r} or {REFERENCE!r}.")
    return weights == REFERENCE


@dataclasses.dataclass(frozen=True)
class References:
    """What of one graph stays where it is.

    Attributes:
        kept: Initializers and the bytes that they point to.
        copied: Files that are not in the graph's folder, by the name that they get there.
        in_place: Files in the graph's folder, relative to it.
    """

    kept: Mapping[ir.Value, DataEntry] = dataclasses.field(default_factory=dict)
    copied: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    in_place: frozenset[str] = frozenset()

    @property
    def locations(self) -> tuple[str, ...]:
        """All files, sorted."""
        return tuple(sorted({*self.copied, *self.in_place}))

    @property
    def entries(self) -> tuple[DataEntry, ...]:
        """What is kept, each tensor once."""
        return tuple({id(entry.tensor): entry for entry in self.kept.values()}.values())

    def bytes_to_copy(self) -> int:
        """Return the size of the files that are copied."""
        return sum(path.stat().st_size for path in self.copied.values())


def find_references(
    model: ir.Model, weights: frozenset[ir.Value], folder: Path, *, alone: bool
) -> References:
    """Return what the graph can take from the files that its weights are read from.

    Args:
        model: The graph, with its weights bound.
        weights: Initializers that take their values from a checkpoint.
        folder: Where the graph will be, all links resolved.
        alone: It is the only graph of its package.

    Raises:
        PackageSaveError: if there is nothing to refer to, or a file cannot be referred to or copied
            under its name.
    """
    kept: dict[ir.Value, DataEntry] = {}
    copied: dict[str, Path] = {}
    in_place: set[str] = set()
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            found = None if tensor is None else in_file(tensor)
            if tensor is None or found is None:
                continue
            offset = found.offset or 0
            if tensor.dtype.bitwidth < 8 or offset % (tensor.dtype.bitwidth // 8):
                continue
            location = _place(Path(found.path), folder, copied, in_place, alone=alone)
            leaves = tensor.leaves if isinstance(tensor, DerivedTensor) else (value,)
            is_weight = not weights.isdisjoint(leaves)
            kept[value] = DataEntry(
                value.name or "", tensor, location, offset, found.nbytes, is_weight
            )
    if not kept:
        raise PackageSaveError(
            "No weight of this package has the bytes that a file already holds, so there is "
            "nothing to refer to. Build in the checkpoint's own dtype, or save without "
            "weights='reference'."
        )
    return References(kept, copied, frozenset(in_place))


def _place(
    path: Path, folder: Path, copied: dict[str, Path], in_place: set[str], *, alone: bool
) -> str:
    """Return the location of a file relative to the graph's folder, and note where it lies."""
    real = path.resolve()
    if real.is_relative_to(folder) and alone:
        location = real.relative_to(folder).as_posix()
        in_place.add(location)
        return location
    if path.absolute().is_relative_to(folder) or (not alone and real.is_relative_to(folder.parent)):
        why = (
            f"is a link to {real}, and runtimes follow no link out of a graph's folder"
            if alone
            else "would lie beside the folders of several graphs, where runtimes read no data"
        )
        raise PackageSaveError(
            f"{path} {why}. Save into another folder, which gets a copy, or without "
            "weights='reference'."
        )
    known = copied.setdefault(path.name, real)
    if known != real:
        raise PackageSaveError(
            f"{known} and {real} both hold weights and would both be {path.name} in the package. "
            "Save without weights='reference'."
        )
    return path.name


def check_finite(
    entries: Iterable[DataEntry],
    *,
    on_bytes: Callable[[int, str], None],
    on_non_finite: Callable[[DataEntry, int], None],
) -> None:
    """Read weights that are not written, and tell those with values that are not finite.

    Args:
        entries: What is kept where it is.
        on_bytes: Called after every few megabytes with their number and the tensor's name.
        on_non_finite: Called with each weight that has such values, and their count.
    """
    for entry in entries:
        bad = 0

        def visit(chunk: npt.NDArray[Any], name: str = entry.name) -> None:
            nonlocal bad
            bad += count_non_finite(chunk)
            on_bytes(chunk.nbytes, name)

        assert entry.tensor is not None  # it was found in a file
        visit_chunks(entry.tensor, visit)
        if bad:
            on_non_finite(entry, bad)


def copy_file(source: Path, target: Path, on_bytes: Callable[[int, str], None]) -> None:
    """Copy a file whole; in the kernel where it can, and without copying where two can share.

    Args:
        source: The file.
        target: Where to; must not exist.
        on_bytes: Called after every few megabytes with their number and the file's name.
    """
    with source.open("rb", buffering=0) as read, target.open("xb", buffering=0) as written:
        while count := _share_or_copy(read.fileno(), written.fileno()) or _copy(read, written):
            on_bytes(count, source.name)


def _share_or_copy(read: int, written: int) -> int:
    """Let the kernel go on with a copy; return how many bytes it did, 0 where it cannot."""
    try:
        return os.copy_file_range(read, written, _CHUNK_BYTES)
    except (AttributeError, OSError):  # not on this system, or not between these file systems
        return 0


def _copy(read: FileIO, written: FileIO) -> int:
    chunk = memoryview(read.read(_CHUNK_BYTES))
    done = 0
    while done < len(chunk):
        done += written.write(chunk[done:])
    return done
