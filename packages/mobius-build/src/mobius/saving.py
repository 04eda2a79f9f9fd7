"""Write a `ModelPackage` into a folder: everything is checked, staged, and moved into place."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from mobius.atomic import atomic_directory, check_destination, check_free_space
from mobius.atomic_files import atomic_files, check_files
from mobius.errors import (
    NonFiniteTensor,
    NonFiniteWeightsError,
    PackageSaveError,
    WeightsError,
)
from mobius.external_data import IR_VERSION, DataEntry, to_external_proto, write_data
from mobius.genai import GENAI_CONFIG, to_json
from mobius.generation_plan import GenerationPlan, kept_generation, plan_generation
from mobius.manifest import (
    MANIFEST_NAME,
    Manifest,
    ModelEntry,
    Padding,
    SourceInfo,
    installed_versions,
)
from mobius.references import COPY, check_finite, copy_file, refers
from mobius.saving_plan import (
    DATA_NAME,
    MODEL_NAME,
    PlannedModel,
    input_files,
    name_files,
    plan_models,
    refuse_inputs,
)
from mobius.weight_files import refuse_changed
from mobius.weights import collect_parameters, explain_non_finite

if TYPE_CHECKING:
    from mobius.package import ModelPackage

__all__ = ["Progress", "check_target", "save_package"]

Progress = Callable[[int, int, str], None]
"""Called with bytes written, bytes in total, and the name of the tensor being written."""

_logger = logging.getLogger(__name__)
_LISTED = 20
_ATTENTION_BIAS = 10  # input of GroupQueryAttention


def check_target(
    directory: Path,
    *,
    overwrite: bool,
    source: str | None = None,
    weights: str = COPY,
) -> Path:
    """Return the resolved `directory` if a package may be saved there.

    Args:
        directory: The folder.
        overwrite: Allow a package that is there to be replaced.
        source: Folder that the weights are read from, if it is one.
        weights: As for `ModelPackage.save`; with `"reference"` that may be the same folder.

    Raises:
        PackageSaveError: saying what is in the way.
    """
    target, refer = directory.expanduser().resolve(), refers(weights)
    folder = None if source is None else Path(source).expanduser()
    if folder is not None and folder.is_dir():
        if refer and folder.resolve() == target:
            names = (MODEL_NAME, MANIFEST_NAME)
            check_files(target, names, overwrite=overwrite, marker=MANIFEST_NAME)
            return target
        refuse_inputs(target, [folder])
    check_destination(target, overwrite=overwrite, marker=MANIFEST_NAME)
    return target


def save_package(
    package: ModelPackage,
    directory: Path,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    weights: str = COPY,
) -> None:
    """Save `package`; see `ModelPackage.save`."""
    target, refer = directory.expanduser().resolve(), refers(weights)
    with_weights = _has_weights(package)
    if refer and not with_weights:
        raise PackageSaveError(
            "The package has no weights yet, so there is nothing to refer to. Load them first, or "
            "save without weights='reference'."
        )
    plans = plan_models(package, target, refer=refer)
    refuse_changed(package.weight_stamps(), input_files(plans.values()))
    generation = plan_generation(package, next(iter(plans.values())).path)
    genai = None if generation is None else generation.genai
    written = (*package.texts, *(() if genai is None else (GENAI_CONFIG,)))
    files = name_files(package.files, plans, written)
    names = [*files, *written]
    check = not package.allow_non_finite
    with _staging(package, target, plans, files, written, overwrite=overwrite) as staging:
        bad: list[NonFiniteTensor] = []
        report = _Reporter(progress, _bytes_to_go(plans.values(), check=check))
        for plan in plans.values():
            (staging / plan.folder).mkdir(exist_ok=True)
            if with_weights:
                _write_weights(plan, staging, report, bad, check=check)
            proto = to_external_proto(plan.model, plan.layout)
            (staging / plan.path).write_bytes(proto.SerializeToString(deterministic=True))
        _judge(bad, allowed=package.allow_non_finite)
        for name, path in files.items():
            if path.resolve() != target / name:
                shutil.copyfile(path, staging / name)
        for name, make in package.texts.items():
            (staging / name).write_text(make(), encoding="utf-8", newline="\n")
        if genai is not None:
            text = to_json(genai)
            (staging / GENAI_CONFIG).write_text(text, encoding="utf-8", newline="\n")
        manifest = _manifest(package, plans, names, with_weights, generation)
        (staging / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8", newline="\n")


def _staging(
    package: ModelPackage,
    target: Path,
    plans: Mapping[str, PlannedModel],
    files: Mapping[str, Path],
    written: Iterable[str],
    *,
    overwrite: bool,
) -> contextlib.AbstractContextManager[Path]:
    """Check all that can be in the way; return a folder whose content will get into `target`.

    It replaces `target`, unless that holds files that the package refers to.
    """
    space = sum(plan.bytes_to_write() for plan in plans.values()) if package.is_loaded else 0
    if not any(plan.references.in_place for plan in plans.values()):
        source = None if package.source is None else package.source.name
        check_target(target, overwrite=overwrite, source=source)
        refuse_inputs(target, [*input_files(plans.values()), *files.values()])
        check_free_space(target, space)
        return atomic_directory(target, overwrite=overwrite, last=MANIFEST_NAME)
    names = [name for plan in plans.values() for name in plan.written]
    names += [*written, *(name for name, path in files.items() if path.resolve() != target / name)]
    check_files(target, [*names, MANIFEST_NAME], overwrite=overwrite, marker=MANIFEST_NAME)
    check_free_space(target, space)
    kept = {location for plan in plans.values() for location in plan.references.in_place}
    kept.update(files)  # a loaded package's own may stay where they are, too
    return atomic_files(target / MANIFEST_NAME, stale={DATA_NAME, GENAI_CONFIG} - kept)


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


def _bytes_to_go(plans: Iterable[PlannedModel], *, check: bool) -> int:
    return sum(plan.bytes_to_write() + check * plan.bytes_to_check() for plan in plans)


def _write_weights(
    plan: PlannedModel,
    staging: Path,
    report: _Reporter,
    bad: list[NonFiniteTensor],
    *,
    check: bool,
) -> None:
    def on_non_finite(entry: DataEntry, count: int) -> None:
        assert entry.tensor is not None
        bad.extend(explain_non_finite(entry.name, entry.tensor, count))

    references = plan.references
    for name, path in references.copied.items():
        copy_file(path, staging / plan.folder / name, report)
    if check:
        check_finite(references.entries, on_bytes=report, on_non_finite=on_non_finite)
    if plan.data is not None:
        write_data(plan.layout, staging / plan.data, on_bytes=report, on_non_finite=on_non_finite)


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
    way_out = (
        "Build for a dtype with more range (bf16, f32), or allow them "
        if all(not item.not_finite for item in bad)
        else "The checkpoint has them. Look for a whole one, or allow them "
    )
    raise NonFiniteWeightsError(
        f"{text}\n{way_out}(apply_weights(..., allow_non_finite=True), --allow-non-finite on the "
        "command line).",
        tensors=bad,
    )


def _manifest(
    package: ModelPackage,
    plans: Mapping[str, PlannedModel],
    files: Iterable[str],
    with_weights: bool,
    generation: GenerationPlan | None,
) -> Manifest:
    padding: Padding = "right" if any(map(_counts_tokens, package.values())) else "any"
    return Manifest(
        models={
            key: ModelEntry(
                path=plan.path,
                data=plan.data,
                references=[str(plan.folder / name) for name in plan.references.locations],
                role=package.roles[key],
                ir_version=IR_VERSION,
                opset_imports=dict(sorted(plan.model.opset_imports.items())),
                optimization=package.optimization_summary(key),
            )
            for key, plan in plans.items()
        },
        execution_provider=package.ep,
        dtype=None if package.dtype is None else package.dtype.name,
        source=None if package.source is None else _published(package.source),
        quantization=package.quantization,
        padding=padding,
        weights=with_weights,
        files=sorted(files),
        versions=installed_versions(),
        runtime=package.runtime_options(),
        generation=kept_generation(package) if generation is None else generation.entry,
    )


def _published(source: SourceInfo) -> SourceInfo:
    """Return `source` without the folder that it was read from, which says where its user works."""
    path = Path(source.name).expanduser()
    if source.revision is None and path.exists():
        return dataclasses.replace(source, name=path.resolve().name)
    return source


def _counts_tokens(model: ir.Model) -> bool:
    """Return whether attention takes a row's real tokens to be the first so many.

    `GroupQueryAttention` does, unless a bias tells it what a query may see.
    """
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    return any(
        node.op_type == "GroupQueryAttention"
        and (len(node.inputs) <= _ATTENTION_BIAS or node.inputs[_ATTENTION_BIAS] is None)
        for graph in graphs
        for node in ir.traversal.RecursiveGraphIterator(graph)
    )
