"""`OptimizationReport`: what each stage did to a model, and what it left alone and why."""

from __future__ import annotations

import collections
import dataclasses
import json
import re
from collections.abc import Iterable
from typing import Any

import onnx_ir as ir

from mobius.layer_graph import LayerGraph
from mobius.stage import Phase
from mobius_ir_rules.match_log import Refusal


@dataclasses.dataclass(frozen=True)
class OpDelta:
    """A change in the number of nodes of one operator.

    Attributes:
        op_type: The operator, with its domain unless that is ONNX's own.
        count: Nodes more (positive) or fewer (negative), never zero.
    """

    op_type: str
    count: int


@dataclasses.dataclass(frozen=True)
class StageRecord:
    """What one stage did.

    Nodes are those of the main graph and its subgraphs; function bodies do not count.

    Attributes:
        phase: The part of the pipeline that the stage belongs to.
        name: Name of the stage.
        applications: Number of rewrites; `None` for a stage that is not made of rewrite rules.
        deltas: Net changes, additions first, large ones first.
        nodes_before: Number of nodes before the stage.
        nodes_after: Number of nodes after it.
        refusals: The candidates that its rules left alone.
        seconds: Time that the stage took, refusals included; no part of equality or of JSON, so
            that equal builds give equal files.
    """

    phase: Phase
    name: str
    applications: int | None
    deltas: tuple[OpDelta, ...]
    nodes_before: int
    nodes_after: int
    refusals: tuple[Refusal, ...] = ()
    seconds: float = dataclasses.field(default=0.0, compare=False)

    @property
    def did_nothing(self) -> bool:
        """Whether the stage changed nothing and had nothing to leave alone."""
        return not (self.deltas or self.applications or self.refusals)

    @property
    def added(self) -> int:
        """Number of nodes that operators have more than before."""
        return sum(delta.count for delta in self.deltas if delta.count > 0)

    @property
    def removed(self) -> int:
        """Number of nodes that operators have fewer than before, as a positive number."""
        return -sum(delta.count for delta in self.deltas if delta.count < 0)


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """A stage that did not run.

    Attributes:
        phase: The part of the pipeline that it belongs to.
        name: Name of the stage.
        reason: Why it did not, as a sentence.
    """

    phase: Phase
    name: str
    reason: str


@dataclasses.dataclass(frozen=True)
class OptimizationReport:
    """What `optimize_model` did.

    Attributes:
        ep: Name of the execution provider.
        dtype: Element type that the stages were chosen for.
        role: Role of the model.
        stages: One record a stage, in the order in which they ran.
        warnings: Expectations that the result does not meet.
        operators_before: Each operator of the model as given, with its number of nodes.
        layer_before: A layer of the model as given, to be drawn, if its layers have names.
        layer_after: The same layer of the result.
        left_out: The stages that did not run.
    """

    ep: str
    dtype: ir.DataType
    role: str
    stages: tuple[StageRecord, ...]
    warnings: tuple[str, ...] = ()
    operators_before: tuple[tuple[str, int], ...] = ()
    layer_before: LayerGraph | None = None
    layer_after: LayerGraph | None = None
    left_out: tuple[LeftOut, ...] = ()

    @property
    def operators_after(self) -> tuple[tuple[str, int], ...]:
        """Each operator of the result, with its number of nodes."""
        counts = collections.Counter(dict(self.operators_before))
        for stage in self.stages:
            for delta in stage.deltas:
                counts[delta.op_type] += delta.count
        return tuple(sorted((+counts).items()))

    @property
    def nodes_before(self) -> int:
        """Number of nodes of the model as given."""
        return self.stages[0].nodes_before if self.stages else 0

    @property
    def nodes_after(self) -> int:
        """Number of nodes of the result."""
        return self.stages[-1].nodes_after if self.stages else 0

    @property
    def seconds(self) -> float:
        """Time that all stages took."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """All candidates that were left alone, in stage order."""
        return tuple(refusal for stage in self.stages for refusal in stage.refusals)

    def stage(self, name: str) -> StageRecord | None:
        """Return the record of a stage; `None` where the plan for this target lacks it."""
        return next((stage for stage in self.stages if stage.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values that JSON can hold; equal reports give equal ones."""
        return {
            "ep": self.ep,
            "dtype": self.dtype.name,
            "role": str(self.role),
            "nodes_before": self.nodes_before,
            "nodes_after": self.nodes_after,
            "operators_before": dict(self.operators_before),
            "operators_after": dict(self.operators_after),
            "stages": [_stage_dict(stage) for stage in self.stages],
            "left_out": {each.name: each.reason for each in self.left_out},
            "warnings": list(self.warnings),
        }

    def to_json(self, indent: int | None = 2) -> str:
        """Return `to_dict()` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        """Return a short table: a line a stage, and the refusals grouped by reason."""
        lines = [f"{self.ep} {self.dtype.name} {self.role}", *_HEADER]
        for stage in self.stages:
            applied = "-" if stage.applications is None else stage.applications
            lines.append(
                f"{stage.name:<15} | {applied:>7} | {stage.added:>6} | {stage.removed:>6} "
                f"| {stage.nodes_after:>6}"
            )
            lines.extend(f"    {line}" for line in refusal_lines(stage.refusals))
        lines.extend(f"Warning: {warning}" for warning in self.warnings)
        return "\n".join(lines)


_HEADER = (
    "Stage           | Applied | +Nodes | -Nodes |  Nodes",
    "----------------+---------+--------+--------+-------",
)


@dataclasses.dataclass(frozen=True)
class RefusalGroup:
    """Candidates that one rule leaves alone for one reason.

    Attributes:
        rule: Name of the rule.
        op_type: Operator of the candidates.
        reason: The reason; that of the first, where it names the node.
        nodes: Names of the candidates.
    """

    rule: str
    op_type: str
    reason: str
    nodes: tuple[str, ...]


def refusal_groups(refusals: Iterable[Refusal]) -> list[RefusalGroup]:
    """Group refusals by rule, operator and reason, in order of the first.

    Reasons that differ in nothing but numbers in names, as those of two layers do, are one.
    """
    groups: dict[tuple[str, str, str], list[Refusal]] = collections.defaultdict(list)
    for refusal in refusals:
        reason = _NAMED.sub(lambda match: _NUMBER.sub("#", match[0]), refusal.reason)
        groups[refusal.rule, refusal.op_type, reason].append(refusal)
    return [
        RefusalGroup(rule, op_type, group[0].reason, tuple(each.node for each in group))
        for (rule, op_type, _), group in groups.items()
    ]


_NAMED = re.compile(r"\b(?:node|initializer|input|output|value) '[^']*'")
_NUMBER = re.compile(r"\d+")


def refusal_lines(refusals: Iterable[Refusal]) -> list[str]:
    """Return a line for each reason: how many candidates it kept, the reason, the first node."""
    return [
        f"refused {len(group.nodes)} {group.op_type}: {group.reason} (first: {group.nodes[0]})"
        for group in refusal_groups(refusals)
    ]


def _stage_dict(stage: StageRecord) -> dict[str, Any]:
    return {
        "phase": stage.phase.value,
        "name": stage.name,
        "applications": stage.applications,
        "nodes_before": stage.nodes_before,
        "nodes_after": stage.nodes_after,
        "deltas": {delta.op_type: delta.count for delta in stage.deltas},
        "refusals": [dataclasses.asdict(refusal) for refusal in stage.refusals],
    }
