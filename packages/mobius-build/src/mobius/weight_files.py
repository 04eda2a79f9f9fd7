"""Tensors in, the files that they are read from out; and whether those are still what they were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx_ir as ir

from mobius.errors import PackageSaveError
from mobius.streaming import WeightTensor
from mobius_ir_rules.lazy import DerivedTensor
from mobius_ir_rules.quantized_weights import BlockQuantizedTensor

__all__ = ["Stamp", "files_of", "refuse_changed", "stamp_files"]

Stamp = tuple[int, int]
"""Size of a file, and the nanosecond in which it was changed last."""


def files_of(tensors: Iterable[ir.TensorProtocol | None]) -> set[Path]:
    """Return the files that tensors are read from, as far as the tensors tell."""
    return {
        Path(path)
        for tensor in tensors
        for source in _sources(tensor)
        # onnx_ir's ExternalTensor and the tensors of sources alike
        if isinstance(path := getattr(source, "path", None), str | Path)
    }


def stamp_files(tensors: Iterable[ir.TensorProtocol | None]) -> dict[Path, Stamp]:
    """Return what `refuse_changed` compares, of the files that tensors are read from and exist."""
    stamps = {path: _stamp(path) for path in files_of(tensors)}
    return {path: stamp for path, stamp in stamps.items() if stamp is not None}


def refuse_changed(stamps: Mapping[Path, Stamp], files: Iterable[Path]) -> None:
    """Refuse to read weights from a file that is not the one that they were found in.

    A tensor is a range of bytes: in another file they are numbers all the same, of another tensor.

    Args:
        stamps: What the files were when their tensors were bound.
        files: Those that are going to be read.

    Raises:
        PackageSaveError: naming the file that has changed or is gone.
    """
    for path in sorted(files):
        known, now = stamps.get(path), _stamp(path)
        if known is not None and now != known:
            raise PackageSaveError(
                f"{path} {'is gone' if now is None else 'has changed'} since this package took its "
                "weights from it. Build or load the package again."
            )


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _sources(tensor: ir.TensorProtocol | None) -> Iterator[ir.TensorProtocol]:
    if isinstance(tensor, DerivedTensor):
        for leaf in tensor.leaves:
            yield from _sources(leaf.const_value)
    elif isinstance(tensor, BlockQuantizedTensor):
        weight = tensor.weight
        for part in filter(None, (weight.packed, weight.scales, weight.zero_points)):
            for leaf in part.leaves():
                yield from _sources(leaf.const_value)
    elif isinstance(tensor, WeightTensor):
        yield from _sources(tensor.source)
    elif isinstance(parts := getattr(tensor, "parts", None), tuple):  # of several tensors
        for part in parts:
            yield from _sources(part)
    elif tensor is not None:
        yield tensor
