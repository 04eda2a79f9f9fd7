"""`optimize_file`: an `.onnx` file in, one optimised for an execution provider out.

Data that nothing changes are not touched: in the input's own folder the result refers to the data
file that is there, and only weights that were packed, transposed or cast are written anew. In
another folder the data are copied, a few megabytes at a time. A model without a data file has none
afterwards either, unless it grows past what one file can hold.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import onnx_ir as ir

from mobius.atomic import check_free_space
from mobius.atomic_files import atomic_files, check_file
from mobius.dtypes import parse_dtype
from mobius.errors import PackageSaveError
from mobius.external_data import (
    DataEntry,
    DataLayout,
    plan_layout,
    to_external_proto,
    write_data,
)
from mobius.model_files import DataFile, model_dtype, read_model_file
from mobius.opsets import parse_opset
from mobius.optimizer import optimize_model
from mobius.report import OptimizationReport
from mobius.roles import parse_role
from mobius.saving import Progress
from mobius_eps import EpCapabilities, get_ep
from mobius_ir_rules.lazy import DerivedTensor

__all__ = ["OptimizedFile", "check_optimize_target", "optimize_file"]

EMBED_AT_MOST = 1536 << 20
"""Bytes of weights in one file; a protobuf message holds less than 2 GiB, the graph included."""


@dataclasses.dataclass(frozen=True)
class OptimizedFile:
    """What `optimize_file` wrote.

    Attributes:
        path: The `.onnx` file.
        data: The data file written beside it, if there is one.
        shared: Names of the input's data files that it refers to.
        report: What was changed.
    """

    path: Path
    data: Path | None
    shared: tuple[str, ...]
    report: OptimizationReport


def check_optimize_target(source: Path, target: Path, *, overwrite: bool) -> None:
    """Refuse an output file that cannot be written, must be kept, or is the input.

    Raises:
        PackageSaveError: saying what is wrong with it.
    """
    check_file(target, overwrite=overwrite or _is_same(source, target))
    if _is_same(source, target):
        raise PackageSaveError(
            f"{target} is the input and is not replaced. Choose another name for the output."
        )


def optimize_file(
    source: Path,
    target: Path,
    *,
    ep: str | EpCapabilities = "default",
    dtype: str | ir.DataType | None = None,
    role: str = "decoder",
    opset: int | None = None,
    overwrite: bool = False,
    copy_weights: bool = False,
    trace: bool = False,
    progress: Progress | None = None,
) -> OptimizedFile:
    """Optimise `source` and write the result to `target`, completely or not at all.

    Args:
        source: An `.onnx` file; neither it nor its data are changed.
        target: Where to write; data go beside it, into a file with `.data` appended to the name.
        ep: Name of a registered execution provider, or its capabilities.
        dtype: Element type that fusions are chosen for; `None` is that of most weights. Nothing
            is cast.
        role: What the model is for, as for `optimize_model`.
        opset: Newest opset that the result may be in, as for `optimize_model`.
        overwrite: Replace `target` if it exists.
        copy_weights: Copy all data, even where the result could refer to the input's.
        trace: Log what each stage did.
        progress: Called with bytes done, bytes in total and the tensor's name.

    Raises:
        ModelFileError: if `source` cannot be read, or lacks data.
        PackageSaveError: if `target` cannot be written. What existed is as before.
        ValueError: for an unknown EP, dtype, role or opset, before anything is read, and whatever
            `optimize_model` raises.
    """
    capabilities = ep if isinstance(ep, EpCapabilities) else get_ep(ep)
    chosen = None if dtype is None else parse_dtype(dtype)
    parse_role(role)
    parse_opset(opset)
    check_optimize_target(source, target, overwrite=overwrite)
    model = read_model_file(source)
    had_data_file = bool(_data_files(model))
    report = optimize_model(
        model, capabilities, chosen or model_dtype(model), role, opset=opset, trace=trace
    )
    data = target.with_name(f"{target.name}.data")
    kept = {} if copy_weights else _kept_entries(model, source, target)
    if not had_data_file and _bytes(model) <= EMBED_AT_MOST:
        layout = DataLayout((), {}, 0)
    else:
        layout = plan_layout(model, data.name, frozenset(), kept)
    if layout.entries:
        _check_data(data, model, overwrite=overwrite)
        check_free_space(target, layout.size)
    _write(model, layout, target, data, progress)
    shared = tuple(sorted({entry.location for entry in kept.values()}))
    return OptimizedFile(target, data if layout.entries else None, shared, report)


def _write(
    model: ir.Model, layout: DataLayout, target: Path, data: Path, progress: Progress | None
) -> None:
    total = sum(entry.length for entry in layout.entries)
    done = 0

    def on_bytes(count: int, name: str) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total, name)

    with atomic_files(target) as staging:
        if layout.entries:
            write_data(layout, staging / data.name, on_bytes=on_bytes)
        proto = to_external_proto(model, layout)
        (staging / target.name).write_bytes(proto.SerializeToString(deterministic=True))


def _kept_entries(model: ir.Model, source: Path, target: Path) -> dict[ir.Value, DataEntry]:
    """Return where the data are that the result can refer to, since its folder is the input's."""
    if source.parent.resolve() != target.parent.resolve():
        return {}
    return {
        value: DataEntry(
            str(value.name),
            tensor,
            tensor.original_location,
            tensor.offset or 0,
            tensor.length or tensor.nbytes,
            is_weight=False,
        )
        for graph in model.graphs()
        for value in graph.initializers.values()
        if isinstance(tensor := value.const_value, DataFile)
    }


def _check_data(data: Path, model: ir.Model, *, overwrite: bool) -> None:
    for path in _data_files(model):
        if _is_same(path, data):
            raise PackageSaveError(
                f"{data} holds the input's data and is not replaced. Choose another name for the "
                "output."
            )
    check_file(data, overwrite=overwrite)


def _data_files(model: ir.Model) -> set[Path]:
    tensors = [
        leaf.const_value
        for graph in model.graphs()
        for value in graph.initializers.values()
        for leaf in (
            value.const_value.leaves if isinstance(value.const_value, DerivedTensor) else (value,)
        )
    ]
    return {Path(tensor.path) for tensor in tensors if isinstance(tensor, DataFile)}


def _bytes(model: ir.Model) -> int:
    return sum(
        value.const_value.nbytes
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None
    )


def _is_same(a: Path, b: Path) -> bool:
    return a.exists() and b.exists() and a.samefile(b)
