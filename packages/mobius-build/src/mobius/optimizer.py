"""`optimize_model`: a model and its target in, the model rewritten in place and a report out."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
import warnings
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Protocol

import onnx_ir as ir

from mobius.dtypes import parse_dtype
from mobius.expectations import missed_gqa, other_dtype, still_lacking
from mobius.histogram import Histogram, changes
from mobius.layer_graph import layer_graph, pick_layer
from mobius.opsets import parse_opset
from mobius.padding import PaddingSide, parse_padding_side
from mobius.pipeline import left_out, plan_for
from mobius.quantization import Quantization, parse_quantization
from mobius.report import OptimizationReport, StageRecord, refusal_lines
from mobius.roles import parse_role
from mobius.size_limits import oversized
from mobius.stage import Phase, Stage, Target
from mobius.stage_pass import StageResult
from mobius.trace import Trace
from mobius_eps import EpCapabilities, get_ep
from mobius_eps.capabilities import NEWEST_OPSET
from mobius_ir_rules.lowering.raise_opset import OLDEST_SOURCE, obstacles, source_opset
from mobius_ir_rules.passes import InvariantError, check_model_invariants
from mobius_ir_rules.passes.graphs import op_counts

logger = logging.getLogger(__name__)


class Observer(Protocol):
    """Watches a run of stages; it is told what happened and changes nothing."""

    def started(self, target: Target) -> None:
        """Before the first phase."""
        ...

    def phase_started(
        self, phase: Phase, target: Target, passes: Sequence[ir.passes.PassBase]
    ) -> None:
        """Before the first stage of a phase; also of a phase that has none for this target."""
        ...

    def stage_finished(self, record: StageRecord) -> None:
        """After a stage."""
        ...

    def finished(self, records: Sequence[StageRecord]) -> None:
        """After the last stage."""
        ...


_watching: ContextVar[tuple[Observer, ...]] = ContextVar("mobius_observers", default=())


@contextlib.contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Let `observer` watch every optimisation of the block, in this thread or task."""
    token = _watching.set((*_watching.get(), observer))
    try:
        yield
    finally:
        _watching.reset(token)


def optimize_model(
    model: ir.Model,
    ep: str | EpCapabilities = "default",
    dtype: str | ir.DataType | None = None,
    role: str = "decoder",
    *,
    opset: int | None = None,
    padding_side: str = PaddingSide.RIGHT,
    quantize: str | Quantization | None = None,
    trace: bool = False,
) -> OptimizationReport:
    """Rewrite `model` in place for an execution provider.

    Graph inputs and outputs keep their names, types and order. Initializers may be without data:
    weights that are packed or transposed become lazy expressions over the originals.

    Args:
        model: The model; left half rewritten if an error is raised after validation.
        ep: Name of a registered execution provider, or its capabilities.
        dtype: Element type of the model's weights and activations, which decides what fuses;
            `None` means float32. Nothing is cast.
        role: What the model is for: `"decoder"`, `"vision"`, `"encoder"` or `"embedding"`.
        opset: Newest opset that the result may be in, from 17 to 24; what an older one lacks is
            written in operators that it has. `None` means the newest that the provider runs. An
            older model is raised, unless it holds what a newer opset may read otherwise.
        padding_side: Where the rows of a batch are padded, `"right"` or `"left"`. The fused
            attention of a decoder is right for right padding alone, unless it is made for left
            padding, which costs a mask; what is not fused is right for both.
        quantize: Makes weights of products integers: `"int4"`, `"int8"`, or a
            `QuantizationConfig`; `None` leaves them as they are.
        trace: Log what each stage did on the logger `mobius._optimizations`, at level INFO.

    Returns:
        What each stage changed and which candidates it left alone, with the reason.

    Raises:
        UnknownEpError: (a `ValueError`) if no such execution provider is registered.
        UnknownDtypeError: (a `ValueError`) if no model can be built in the dtype.
        UnknownRoleError: (a `ValueError`) if there is no such role.
        UnsupportedOpsetError: (a `ValueError`) if no model can be brought to the opset.
        UnknownPaddingSideError: (a `ValueError`) if there is no such side.
        QuantizationError: (a `ValueError`) if there is no such way to quantize.
        TypeError: if `model` is no `ir.Model`. Nothing has been touched in all these cases.
        OpsetError: (a `ValueError`) if the model holds what `opset` cannot say.
        InvariantError: (a `ValueError`) if the result is no valid model for the target, for
            instance because an operator is of a domain that it does not allow.

    Warns:
        UserWarning: if attention should have been fused for the target and was not, if operators
            stay that the target lacks, or if tensors are larger than it takes for sure.
    """
    if not isinstance(model, ir.Model):
        raise TypeError(
            f"optimize_model needs an onnx_ir.Model, not {type(model).__name__}. Load a file with "
            "onnx_ir.load(path), convert a ModelProto with onnx_ir.from_proto(proto)."
        )
    capabilities = ep if isinstance(ep, EpCapabilities) else get_ep(ep)
    target = Target(
        capabilities,
        ir.DataType.FLOAT if dtype is None else parse_dtype(dtype),
        parse_role(role),
        parse_opset(opset),
        source_opset(model) or NEWEST_OPSET,
        parse_padding_side(padding_side),
        parse_quantization(quantize),
    )
    target = with_raised_opset(target, model)
    mismatch = other_dtype(model, target)
    if mismatch is not None:
        logger.warning("%s", mismatch)
    inputs = [str(value.name) for value in model.graph.inputs]
    outputs = [str(value.name) for value in model.graph.outputs]
    observers = [*([Trace()] if trace else []), *_watching.get()]
    report = run_stages(model, target, plan_for(target), observers)
    report = dataclasses.replace(report, left_out=left_out(target))
    try:
        check_model_invariants(
            model,
            allowed_domains=capabilities.allowed_domains,
            input_names=inputs,
            output_names=outputs,
        )
        _check_functions(model, capabilities)
    except InvariantError as error:
        raise InvariantError(_with_reasons(str(error), report)) from None
    for warning in report.warnings:
        warnings.warn(warning, UserWarning, stacklevel=2)
    return report


def _with_reasons(message: str, report: OptimizationReport) -> str:
    """Return the message with what stages said of operators that they could not expand."""
    lines = [
        f"- {stage.name} {line}"
        for stage in report.stages
        if stage.phase in (Phase.CLEANUP, Phase.INLINE)
        for line in refusal_lines(stage.refusals)
    ]
    if not lines:
        return message
    return "\n".join([message, "What could not be written in other operators:", *lines])


def with_raised_opset(target: Target, model: ir.Model) -> Target:
    """Return the target with the opset to which the model will be raised, if it will be."""
    goal = target.raise_goal
    known = OLDEST_SOURCE <= target.model_opset < target.max_opset
    if not known or obstacles(model, goal):
        return target
    return dataclasses.replace(target, raised_opset=goal)


def _check_functions(model: ir.Model, capabilities: EpCapabilities) -> None:
    """Check that no function is left in a domain that the target does not allow."""
    left = [
        f"{function.domain}::{function.name}"
        for function in model.functions.values()
        if function.domain not in capabilities.allowed_domains
    ]
    if left:
        raise InvariantError(
            f"The model is invalid: the functions {left} stayed, and {capabilities.name!r} allows "
            f"the domains {sorted(capabilities.allowed_domains)} only."
        )


def run_stages(
    model: ir.Model,
    target: Target,
    stages: Sequence[Stage],
    observers: Sequence[Observer] = (),
) -> OptimizationReport:
    """Run `stages` on `model`, phase after phase; the only loop over stages, traced or not.

    Args:
        model: The model, rewritten in place.
        target: What the passes are made for.
        stages: The stages that apply to `target`, in order within their phase.
        observers: Told of each step.
    """
    records: list[StageRecord] = []
    notes: list[str] = []
    histogram = op_counts(model)
    operators_before = tuple(sorted(histogram.items()))
    layer = pick_layer(model)
    layer_before = None if layer is None else layer_graph(model, layer)
    for observer in observers:
        observer.started(target)
    for phase in Phase:
        phase_stages = [stage for stage in stages if stage.phase is phase]
        passes = [stage.make(target) for stage in phase_stages]
        for observer in observers:
            observer.phase_started(phase, target, passes)
        for stage, stage_pass in zip(phase_stages, passes, strict=True):
            record, histogram = _run_stage(model, stage, stage_pass, histogram)
            records.append(record)
            for observer in observers:
                observer.stage_finished(record)
        if phase is Phase.FUSION:
            note = missed_gqa(model, target, records)
            notes.extend([] if note is None else [note])
    notes.extend(still_lacking(model, target))
    notes.extend(oversized(model, target))
    for observer in observers:
        observer.finished(records)
    return OptimizationReport(
        target.capabilities.name,
        target.dtype,
        target.role,
        tuple(records),
        tuple(notes),
        operators_before,
        layer_before,
        None if layer is None else layer_graph(model, layer),
    )


def _run_stage(
    model: ir.Model, stage: Stage, stage_pass: ir.passes.PassBase, before: Histogram
) -> tuple[StageRecord, Histogram]:
    start = time.perf_counter()
    try:
        result = stage_pass(model)
    except Exception as error:
        error.add_note(f"Raised by the optimisation stage {stage.name!r}.")
        raise
    if result.model is not model:
        raise TypeError(f"The pass of the stage {stage.name!r} must work in place.")
    seconds = time.perf_counter() - start
    after = op_counts(model) if result.modified else before
    record = StageRecord(
        phase=stage.phase,
        name=stage.name,
        applications=result.applications if isinstance(result, StageResult) else None,
        deltas=changes(before, after),
        nodes_before=before.total(),
        nodes_after=after.total(),
        refusals=result.refusals if isinstance(result, StageResult) else (),
        seconds=seconds,
    )
    return record, after
