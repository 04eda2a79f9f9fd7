"""Write a `ModelPackage` into a folder: everything is checked, staged, and moved into place."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import onnx_ir as ir

from mobius.atomic import atomic_directory, check_destination, check_free_space
from mobius.errors import (
    NonFiniteTensor,
    NonFiniteWeightsError,
    PackageSaveError,
    WeightsError,
)
from mobius.external_data import (
    IR_VERSION,
    DataEntry,
    DataLayout,
    plan_layout,
    to_external_proto,
    write_data,
)
from mobius.manifest import MANIFEST_NAME, Manifest, ModelEntry, Padding, installed_versions
from mobius.streaming import WeightTensor
from mobius.weights import collect_parameters, explain_non_finite
from mobius_ir_rules.lazy import DerivedTensor

if TYPE_CHECKING:
    from mobius.package import ModelPackage

__all__ = ["Progress", "check_target", "save_package"]

MODEL_NAME = "model.onnx"
DATA_NAME = "model.onnx.data"

Progress = Callable[[int, int, str], None]
"""Called with bytes written, bytes in total, and the name of the tensor being written."""

_logger = logging.getLogger(__name__)
_LISTED = 20


@dataclasses.dataclass(frozen=True)
class _PlannedModel:
    model: ir.Model
    folder: PurePosixPath
    layout: DataLayout

    @property
    def path(self) -> str:
        return str(self.folder / MODEL_NAME)

    @property
    def data(self) -> str | None:
        return str(self.folder / DATA_NAME) if self.layout.entries else None


def check_target(directory: Path, *, overwrite: bool, source: str | None = None) -> Path:
    """Return the resolved `directory` if a package may be saved there.

    Args:
        directory: The folder.
        overwrite: Allow a package that is there to be replaced.
        source: Folder that the weights are read from, if it is one.

    Raises:
        PackageSaveError: saying what is in the way.
    """
    target = directory.expanduser().resolve()
    if source is not None and Path(source).expanduser().is_dir():
        _refuse_inputs(target, [Path(source).expanduser()])
    check_destination(target, overwrite=overwrite, marker=MANIFEST_NAME)
    return target


def save_package(
    package: ModelPackage,
    directory: Path,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> None:
    """Save `package`; see `ModelPackage.save`."""
    plans = _plan(package)
    files = _named_files(package.files, plans)
    with_weights = _has_weights(package)
    total = sum(entry.length for plan in plans.values() for entry in plan.layout.entries)
    source = None if package.source is None else package.source.name
    target = check_target(directory, overwrite=overwrite, source=source)
    _refuse_inputs(target, [*_mapped_files(plans.values()), *files.values()])
    if with_weights:
        check_free_space(target, total)
    with atomic_directory(target, overwrite=overwrite, last=MANIFEST_NAME) as staging:
        bad: list[NonFiniteTensor] = []
        report = _Reporter(progress, total)
        for plan in plans.values():
            (staging / plan.folder).mkdir(exist_ok=True)
            if with_weights:
                _write_weights(plan, staging, report, bad)
            proto = to_external_proto(plan.model, plan.layout)
            (staging / plan.path).write_bytes(proto.SerializeToString(deterministic=True))
        _judge(bad, allowed=package.allow_non_finite)
        for name, path in files.items():
            shutil.copyfile(path, staging / name)
        manifest = _manifest(package, plans, files, with_weights)
        (staging / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8", newline="\n")


class _Reporter:
    """Turns the bytes of each write into bytes done out of the total."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def __call__(self, count: int, name: str) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total, name)


def _plan(package: ModelPackage) -> dict[str, _PlannedModel]:
    weights = frozenset(value for values in package.parameters().values() for value in values)
    return {
        key: _PlannedModel(
            model,
            PurePosixPath("." if len(package) == 1 else key),
            plan_layout(model, DATA_NAME, weights),
        )
        for key, model in package.items()
    }


def _has_weights(package: ModelPackage) -> bool:
    """Return whether there are weights to write; a package with only some of them is refused."""
    waiting = collect_parameters(package.values())
    if not waiting:
        return True
    captured = package.parameters()
    if any(value.const_value is not None for values in captured.values() for value in values):
        raise WeightsError(
            f"The package is loaded in part: {len(waiting)} of its parameters have no data: "
            f"{', '.join(list(waiting)[:_LISTED])}. Load all of them with apply_weights, or none.",
            missing=list(waiting),
        )
    return False


def _named_files(files: Iterable[Path], plans: Mapping[str, _PlannedModel]) -> dict[str, Path]:
    """Return the files to be copied by the name they get, refusing names that are taken."""
    taken = {MANIFEST_NAME, *(PurePosixPath(plan.path).parts[0] for plan in plans.values())}
    taken |= {plan.data for plan in plans.values() if plan.data is not None}
    folded = {name.casefold() for name in taken}  # some file systems do not tell case apart
    named: dict[str, Path] = {}
    for path in files:
        if path.name.casefold() in folded:
            raise PackageSaveError(
                f"{path} cannot be copied into the package: it already has a {path.name}. "
                "Rename one of the two."
            )
        if not path.is_file():
            raise PackageSaveError(f"{path} belongs into the package but is not a file.")
        folded.add(path.name.casefold())
        named[path.name] = path
    return named


def _refuse_inputs(target: Path, inputs: Iterable[Path]) -> None:
    """Refuse to replace a folder that holds something that the package is still read from."""
    for path in inputs:
        if path.resolve().is_relative_to(target) or path.absolute().is_relative_to(target):
            raise PackageSaveError(
                f"{target} holds what this package is read from ({path}) and is not replaced. "
                "Choose another folder."
            )


def _mapped_files(plans: Iterable[_PlannedModel]) -> set[Path]:
    return {
        Path(path)
        for plan in plans
        for entry in plan.layout.entries
        for tensor in _sources(entry.tensor)
        # onnx_ir's ExternalTensor and the mapped tensors of sources alike
        if isinstance(path := getattr(tensor, "path", None), str | Path)
    }


def _sources(tensor: ir.TensorProtocol | None) -> Iterable[ir.TensorProtocol]:
    if isinstance(tensor, DerivedTensor):
        for leaf in tensor.leaves:
            yield from _sources(leaf.const_value)
    elif isinstance(tensor, WeightTensor):
        yield from _sources(tensor.source)
    elif tensor is not None:
        yield tensor


def _write_weights(
    plan: _PlannedModel, staging: Path, report: _Reporter, bad: list[NonFiniteTensor]
) -> None:
    if plan.data is None:
        return

    def on_non_finite(entry: DataEntry, count: int) -> None:
        assert entry.tensor is not None
        bad.extend(explain_non_finite(entry.name, entry.tensor, count))

    with open(staging / plan.data, "xb") as file:
        write_data(plan.layout, file, on_bytes=report, on_non_finite=on_non_finite)


def _judge(bad: list[NonFiniteTensor], *, allowed: bool) -> None:
    if not bad:
        return
    lines = [
        f"  {item.name}: {item.not_finite} NaN or infinite, {item.overflowed} beyond the dtype"
        for item in bad[:_LISTED]
    ]
    if len(bad) > _LISTED:
        lines.append(f"  and {len(bad) - _LISTED} more")
    text = f"{len(bad)} weights have values that are not finite:\n" + "\n".join(lines)
    if allowed:
        _logger.warning("%s", text)
        return
    raise NonFiniteWeightsError(
        f"{text}\nBuild for a dtype with more range (bf16, f32), or allow them "
        "(apply_weights(..., allow_non_finite=True)).",
        tensors=bad,
    )


def _manifest(
    package: ModelPackage,
    plans: Mapping[str, _PlannedModel],
    files: Iterable[str],
    with_weights: bool,
) -> Manifest:
    padding: Padding = "right" if any(map(_has_group_query_attention, package.values())) else "any"
    return Manifest(
        models={
            key: ModelEntry(
                path=plan.path,
                data=plan.data,
                role=package.roles[key],
                ir_version=IR_VERSION,
                opset_imports=dict(sorted(plan.model.opset_imports.items())),
                optimization=package.optimization_summary(key),
            )
            for key, plan in plans.items()
        },
        execution_provider=package.ep,
        dtype=None if package.dtype is None else package.dtype.name,
        source=package.source,
        padding=padding,
        weights=with_weights,
        files=sorted(files),
        versions=installed_versions(),
        runtime=package.runtime_options(),
    )


def _has_group_query_attention(model: ir.Model) -> bool:
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    return any(
        node.op_type == "GroupQueryAttention"
        for graph in graphs
        for node in ir.traversal.RecursiveGraphIterator(graph)
    )
