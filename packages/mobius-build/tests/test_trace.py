"""The trace prints the specification's lines, and watching changes nothing."""

from __future__ import annotations

import logging

import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import pytest

from mobius.report import OpDelta, StageRecord
from mobius.roles import Role
from mobius.stage import Phase, Target
from mobius.trace import Trace, format_deltas
from mobius_eps import get_ep
from mobius_ir_rules.match_log import Refusal

CUDA = Target(get_ep("cuda"), ir.DataType.FLOAT16, Role.DECODER)

# The specification's sample. The numbers of SkipNorm are those of its own definitions: one Add
# and one norm for each fusion, and Matched is what -Nodes is.
SAMPLE = """\
[EP Trace] Target: cuda, dtype: FLOAT16, role: decoder
[EP Trace] Stage 1: Cleanup (9 passes)
[EP Trace]   Cleanup: 512 → 486 nodes (-26)
[EP Trace] Stage 2: Fusion (5 rule groups)
[EP Trace]   GQAFusion                 : +28 GroupQueryAttention, -28 Attention
[EP Trace]   PackQKV                   : +28 Concat, -56 FusedMatMul
[EP Trace]   SkipNorm                  : +56 SkipSimplifiedLayerNorm, -56 Add, -56 RMSNormalization
[EP Trace]   SkipLayerNorm             : no matches (0 nodes affected)
[EP Trace]   GeluFusion                : no matches (0 nodes affected)
[EP Trace] Stage 2b: InlinePass (expand unsupported custom ops)
[EP Trace]   InlinePass                : no matches (0 nodes affected)
[EP Trace] Stage 3: Lowering (0 rule groups for cuda)
[EP Trace] Stage 4: Constant folding
[EP Trace]   Fold: 374 → 371 nodes (-3)
[EP Trace] Summary:
[EP Trace]   Rule                      | Matched | +Nodes | -Nodes
[EP Trace]   -------------------------+--------+-------+-------
[EP Trace]   GQAFusion                 |      28 |     28 |     28
[EP Trace]   PackQKV                   |      56 |     28 |     56
[EP Trace]   SkipNorm                  |     112 |     56 |    112
[EP Trace]   SkipLayerNorm             |       0 |      0 |      0
[EP Trace]   GeluFusion                |       0 |      0 |      0
[EP Trace]   InlinePass                |       0 |      0 |      0"""


def _record(phase: Phase, name: str, *deltas: tuple[str, int], **fields: object) -> StageRecord:
    values: dict[str, object] = {"applications": 1, "nodes_before": 0, "nodes_after": 0}
    values.update(fields)
    changes = tuple(OpDelta(op_type, count) for op_type, count in deltas)
    return StageRecord(phase=phase, name=name, deltas=changes, **values)  # type: ignore[arg-type]


def _messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert {record.name for record in caplog.records} == {"mobius._optimizations"}
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    return [record.getMessage() for record in caplog.records]


def test_sample_of_the_specification(caplog: pytest.LogCaptureFixture) -> None:
    nine = ir.passes.Sequential(*[common_passes.NameFixPass() for _ in range(9)])
    one = common_passes.NameFixPass()
    ms = "com.microsoft::"
    fusion = [
        _record(Phase.FUSION, "GQAFusion", (f"{ms}GroupQueryAttention", 28), ("Attention", -28)),
        _record(Phase.FUSION, "PackQKV", ("Concat", 28), (f"{ms}FusedMatMul", -56)),
        _record(
            Phase.FUSION,
            "SkipNorm",
            (f"{ms}SkipSimplifiedLayerNormalization", 56),
            ("Add", -56),
            ("RMSNormalization", -56),
        ),
        _record(Phase.FUSION, "SkipLayerNorm"),
        _record(Phase.FUSION, "GeluFusion"),
    ]
    cleanup = _record(Phase.CLEANUP, "Cleanup", nodes_before=512, nodes_after=486)
    inline = _record(Phase.INLINE, "InlinePass")
    fold = _record(Phase.FOLD, "Fold", nodes_before=374, nodes_after=371)

    phases: list[tuple[Phase, list[ir.passes.PassBase], list[StageRecord]]] = [
        (Phase.CLEANUP, [nine], [cleanup]),
        (Phase.FUSION, [one] * 5, fusion),
        (Phase.INLINE, [one], [inline]),
        (Phase.LOWERING, [], []),
        (Phase.FOLD, [one], [fold]),
    ]
    trace = Trace()
    with caplog.at_level(logging.INFO, logger="mobius._optimizations"):
        trace.started(CUDA)
        for phase, passes, records in phases:
            trace.phase_started(phase, CUDA, passes)
            for record in records:
                trace.stage_finished(record)
        trace.finished([cleanup, *fusion, inline, fold])

    assert "\n".join(_messages(caplog)) == SAMPLE


def test_lowering_stages_are_in_the_summary(caplog: pytest.LogCaptureFixture) -> None:
    record = _record(Phase.LOWERING, "SeparateRoPE", ("RotaryEmbedding", 4))
    with caplog.at_level(logging.INFO, logger="mobius._optimizations"):
        Trace().finished([record])
    assert _messages(caplog)[-1] == (
        "[EP Trace]   SeparateRoPE              |       0 |      4 |      0"
    )


def test_refusals_are_logged_once_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    refusals = tuple(
        Refusal("GroupQueryAttention", f"layers.{layer}/Attention", "Attention", "No cache.")
        for layer in range(28)
    )
    record = _record(Phase.FUSION, "GQAFusion", refusals=refusals)
    with caplog.at_level(logging.INFO, logger="mobius._optimizations"):
        Trace().stage_finished(record)
    assert _messages(caplog) == [
        "[EP Trace]   GQAFusion                 : no matches (0 nodes affected)",
        "[EP Trace]     refused 28 Attention: No cache. (first: layers.0/Attention)",
    ]


def test_domains_are_shown_only_where_names_collide() -> None:
    deltas = [OpDelta("com.microsoft::RotaryEmbedding", 2), OpDelta("RotaryEmbedding", -2)]
    assert format_deltas(deltas) == "+2 com.microsoft::RotaryEmbedding, -2 RotaryEmbedding"
    assert format_deltas(deltas[:1]) == "+2 RotaryEmbedding"


def test_nothing_is_logged_below_info(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="mobius._optimizations"):
        Trace().started(CUDA)
    assert not caplog.records
