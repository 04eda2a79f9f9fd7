"""`Trace`: an observer of the pipeline that logs each stage's changes, then a summary.

The lines are those of the specification. Its sample contradicts its own definitions in places, and
there the definitions decide:

* an operator's change is net: three MatMul packed into one read `-2 MatMul`;
* *Matched* is the number of nodes that a stage removed or consumed, so it equals *-Nodes* (the
  sample's SkipNorm row counts only the norms as matched, and two Add for each);
* the number of passes and of rule groups is what really runs for the target.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Sequence

import onnx_ir as ir

from mobius.report import OpDelta, StageRecord, refusal_lines
from mobius.stage import Phase, Target

LOGGER_NAME = "mobius._optimizations"

_PREFIX = "[EP Trace] "
_NAME_WIDTH = 26
_SHORT_NAMES = {"SkipSimplifiedLayerNormalization": "SkipSimplifiedLayerNorm"}
_SUMMARY_PHASES = (Phase.FUSION, Phase.INLINE, Phase.LOWERING)


class Trace:
    """Logs at level INFO on `mobius._optimizations`; one instance serves one run."""

    def __init__(self) -> None:
        """Create an observer."""
        self._logger = logging.getLogger(LOGGER_NAME)

    def started(self, target: Target) -> None:
        """Log the target."""
        self._log(
            "Target: %s, dtype: %s, role: %s",
            target.capabilities.name,
            target.dtype.name,
            target.role,
        )

    def phase_started(
        self, phase: Phase, target: Target, passes: Sequence[ir.passes.PassBase]
    ) -> None:
        """Log the headline of a phase."""
        if phase is Phase.CLEANUP:
            self._log("Stage 1: Cleanup (%d passes)", sum(map(_number_of_passes, passes)))
        elif phase is Phase.FUSION:
            self._log("Stage 2: Fusion (%d rule groups)", len(passes))
        elif phase is Phase.INLINE:
            self._log("Stage 2b: InlinePass (expand unsupported custom ops)")
        elif phase is Phase.LOWERING:
            name = target.capabilities.name
            self._log("Stage 3: Lowering (%d rule groups for %s)", len(passes), name)
        else:
            self._log("Stage 4: Constant folding")

    def stage_finished(self, record: StageRecord) -> None:
        """Log what the stage changed, and what its rules refused."""
        if record.phase in _SUMMARY_PHASES:
            name, deltas = record.name, format_deltas(record.deltas)
            self._log(f"  %-{_NAME_WIDTH}s: %s", name, deltas)
        else:
            before, after = record.nodes_before, record.nodes_after
            self._log("  %s: %d → %d nodes (%+d)", record.name, before, after, after - before)
        for line in refusal_lines(record.refusals):
            self._log("    %s", line)

    def finished(self, records: Sequence[StageRecord]) -> None:
        """Log the summary table."""
        self._log("Summary:")
        self._log(f"  %-{_NAME_WIDTH}s| Matched | +Nodes | -Nodes", "Rule")
        self._log("  -------------------------+--------+-------+-------")
        for record in records:
            if record.phase in _SUMMARY_PHASES:
                self._log(
                    f"  %-{_NAME_WIDTH}s| %7d | %6d | %6d",
                    record.name,
                    record.removed,
                    record.added,
                    record.removed,
                )

    def _log(self, message: str, *arguments: object) -> None:
        self._logger.info(_PREFIX + message, *arguments)


def format_deltas(deltas: Sequence[OpDelta]) -> str:
    """Return `+28 GroupQueryAttention, -28 Attention`, or that nothing matched.

    Domains are left out, except where two operators of a line differ in nothing else.
    """
    if not deltas:
        return "no matches (0 nodes affected)"
    times = collections.Counter(_unqualified(delta.op_type) for delta in deltas)
    parts = []
    for delta in deltas:
        name = _unqualified(delta.op_type)
        shown = delta.op_type if times[name] > 1 else _SHORT_NAMES.get(name, name)
        parts.append(f"{delta.count:+d} {shown}")
    return ", ".join(parts)


def _unqualified(op_type: str) -> str:
    return op_type.rpartition("::")[2]


def _number_of_passes(each: ir.passes.PassBase) -> int:
    return len(each.passes) if isinstance(each, ir.passes.Sequential) else 1
