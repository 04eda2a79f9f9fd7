"""`OptimizationReport`: immutable, comparable, and the same JSON for the same build."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle

import onnx_ir as ir
import pytest

from mobius.report import (
    OpDelta,
    OptimizationReport,
    StageRecord,
    refusal_groups,
    refusal_lines,
)
from mobius.stage import Phase
from mobius_ir_rules.match_log import Refusal

REFUSALS = (
    Refusal("GroupQueryAttention", "layers.0/attn", "Attention", "No cache."),
    Refusal("GroupQueryAttention", "layers.1/attn", "Attention", "No cache."),
    Refusal("GroupQueryAttention", "layers.2/attn", "Attention", "No mask."),
)


def _report(seconds: float = 0.5) -> OptimizationReport:
    cleanup = StageRecord(Phase.CLEANUP, "Cleanup", None, (OpDelta("Identity", -2),), 12, 10)
    fusion = StageRecord(
        Phase.FUSION,
        "GQAFusion",
        2,
        (OpDelta("com.microsoft::GroupQueryAttention", 2), OpDelta("Attention", -2)),
        10,
        10,
        REFUSALS,
        seconds,
    )
    return OptimizationReport("cuda", ir.DataType.FLOAT16, "decoder", (cleanup, fusion))


def test_totals() -> None:
    report = _report()
    assert (report.nodes_before, report.nodes_after) == (12, 10)
    assert report.refusals == REFUSALS
    fusion = report.stage("GQAFusion")
    assert fusion is not None
    assert (fusion.added, fusion.removed) == (2, 2)
    assert report.stage("PackQKV") is None


def test_to_dict_is_what_json_holds() -> None:
    report = _report()
    assert json.loads(report.to_json()) == report.to_dict()
    assert report.to_dict()["stages"][1] == {
        "phase": "2",
        "name": "GQAFusion",
        "applications": 2,
        "nodes_before": 10,
        "nodes_after": 10,
        "deltas": {"com.microsoft::GroupQueryAttention": 2, "Attention": -2},
        "refusals": [
            {
                "rule": "GroupQueryAttention",
                "node": f"layers.{layer}/attn",
                "op_type": "Attention",
                "reason": reason,
                "inherent": False,
            }
            for layer, reason in enumerate(["No cache.", "No cache.", "No mask."])
        ],
    }


def test_time_is_no_part_of_equality_or_json() -> None:
    quick, slow = _report(0.1), _report(2.0)
    assert slow.seconds == 2.0
    assert quick == slow
    assert quick.to_json() == slow.to_json()


def test_immutable_hashable_copyable() -> None:
    report = _report()
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.ep = "cpu"  # type: ignore[misc]
    assert hash(report) == hash(_report())
    assert copy.deepcopy(report) == report
    assert pickle.loads(pickle.dumps(report)) == report


def test_refusals_are_grouped_by_reason() -> None:
    assert refusal_lines(REFUSALS) == [
        "refused 2 Attention: No cache. (first: layers.0/attn)",
        "refused 1 Attention: No mask. (first: layers.2/attn)",
    ]


def test_reasons_that_name_another_layer_are_one_reason() -> None:
    refusals = [
        Refusal("Fuse", f"layers.{i}/attn", "Attention", f"The node 'layers.{i}/mask' is odd, {n}.")
        for i, n in enumerate([8, 8, 12])
    ]
    groups = refusal_groups(refusals)
    assert [(group.reason, group.nodes) for group in groups] == [
        ("The node 'layers.0/mask' is odd, 8.", ("layers.0/attn", "layers.1/attn")),
        ("The node 'layers.2/mask' is odd, 12.", ("layers.2/attn",)),
    ]


def test_operators_after_are_those_before_and_what_the_stages_changed() -> None:
    report = dataclasses.replace(
        _report(), operators_before=(("Attention", 2), ("Identity", 2), ("MatMul", 8))
    )
    assert report.operators_after == (("MatMul", 8), ("com.microsoft::GroupQueryAttention", 2))
    assert report.to_dict()["operators_after"] == dict(report.operators_after)


def test_str_is_a_short_table() -> None:
    report = dataclasses.replace(_report(), warnings=("Something is slow.",))
    assert str(report) == (
        "cuda FLOAT16 decoder\n"
        "Stage           | Applied | +Nodes | -Nodes |  Nodes\n"
        "----------------+---------+--------+--------+-------\n"
        "Cleanup         |       - |      0 |      2 |     10\n"
        "GQAFusion       |       2 |      2 |      2 |     10\n"
        "    refused 2 Attention: No cache. (first: layers.0/attn)\n"
        "    refused 1 Attention: No mask. (first: layers.2/attn)\n"
        "Warning: Something is slow."
    )


def test_empty_report() -> None:
    report = OptimizationReport("default", ir.DataType.FLOAT, "vision", ())
    assert (report.nodes_before, report.nodes_after, report.seconds) == (0, 0, 0.0)
