"""The loop over stages: validation first, one loop traced or not, records that add up."""

from __future__ import annotations

import logging
import warnings

import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import pytest

import mobius
from mobius.optimizer import optimize_model, run_stages
from mobius.report import OpDelta
from mobius.roles import Role, UnknownRoleError
from mobius.stage import Phase, Stage, Target
from mobius.stage_pass import StageResult
from mobius_eps import UnknownEpError, get_ep
from mobius_ir_rules.match_log import Refusal

TARGET = Target(get_ep("cuda"), ir.DataType.FLOAT16, Role.DECODER)

IDENTITIES = """
    <ir_version: 10, opset_import: ["" : 24]>
    identities (float[N] x) => (float[N] y) {
        a = Identity (x)
        b = Neg (a)
        y = Identity (b)
    }
"""

# A cached Attention whose mask is a graph input: causality cannot be proved.
UNPROVED_MASK = """
    <ir_version: 10, opset_import: ["" : 24]>
    unproved (
        float16[B, S, 64] q, float16[B, S, 32] k, float16[B, S, 32] v, bool[B, 1, S, T] mask,
        float16[B, 2, P, 16] past_key, float16[B, 2, P, 16] past_value
    ) => (float16[B, S, 64] y, float16[B, 2, T, 16] key, float16[B, 2, T, 16] value) {
        y, key, value = Attention <q_num_heads = 4, kv_num_heads = 2> (
            q, k, v, mask, past_key, past_value
        )
    }
"""


class RenameOps(ir.passes.InPlacePass):
    """Turns every `Neg` into `Abs` and reports a refusal."""

    def call(self, model: ir.Model) -> StageResult:
        nodes = [node for node in model.graph if node.op_type == "Neg"]
        for node in nodes:
            node.op_type = "Abs"
        refusal = Refusal("Rename", "n", "Abs", "It is renamed already.")
        return StageResult(model, bool(nodes), len(nodes), (refusal,))


FAKE_STAGES = (
    Stage(Phase.FUSION, "Rename", lambda _: True, lambda _: RenameOps()),
    Stage(
        Phase.CLEANUP,
        "Cleanup",
        lambda _: True,
        lambda _: ir.passes.Sequential(common_passes.IdentityEliminationPass()),
    ),
)


class Recorder:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def started(self, target: Target) -> None:
        self.events.append(target)

    def phase_started(self, phase: Phase, target: Target, passes: object) -> None:
        self.events.append((phase, len(passes)))  # type: ignore[arg-type]

    def stage_finished(self, record: object) -> None:
        self.events.append(record)

    def finished(self, records: object) -> None:
        self.events.append(tuple(records))  # type: ignore[arg-type]


def _identities() -> ir.Model:
    return ir.from_onnx_text(IDENTITIES)


def test_stages_run_phase_after_phase_and_are_recorded() -> None:
    recorder = Recorder()
    report = run_stages(_identities(), TARGET, FAKE_STAGES, [recorder])
    cleanup, rename = report.stages
    assert (cleanup.name, cleanup.applications, cleanup.refusals) == ("Cleanup", None, ())
    assert cleanup.deltas == (OpDelta("Identity", -2),)
    assert (cleanup.nodes_before, cleanup.nodes_after) == (3, 1)
    assert (rename.name, rename.applications) == ("Rename", 1)
    assert rename.deltas == (OpDelta("Abs", 1), OpDelta("Neg", -1))
    assert report.refusals == (Refusal("Rename", "n", "Abs", "It is renamed already."),)
    assert recorder.events == [
        TARGET,
        (Phase.CLEANUP, 1),
        cleanup,
        (Phase.FUSION, 1),
        rename,
        (Phase.INLINE, 0),
        (Phase.LOWERING, 0),
        (Phase.FOLD, 0),
        (cleanup, rename),
    ]


def test_watching_changes_nothing() -> None:
    watched, alone = _identities(), _identities()
    report = run_stages(watched, TARGET, FAKE_STAGES, [Recorder(), Recorder()])
    assert report == run_stages(alone, TARGET, FAKE_STAGES)
    assert ir.to_proto(watched) == ir.to_proto(alone)


def test_trace_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    traced, alone = _identities(), _identities()
    with caplog.at_level(logging.INFO, logger="mobius._optimizations"):
        report = optimize_model(traced, trace=True)
        logged = len(caplog.records)
        assert report == optimize_model(alone)
        assert len(caplog.records) == logged
    assert ir.to_proto(traced) == ir.to_proto(alone)
    assert caplog.records[0].getMessage() == (
        "[EP Trace] Target: default, dtype: FLOAT, role: decoder"
    )


def test_nodes_of_subgraphs_are_counted() -> None:
    model = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["" : 24]>
        branches (bool c, float[N] x) => (float[N] y) {
            y = If (c) <
                then_branch = yes () => (float[N] t) { t = Neg (x) },
                else_branch = no () => (float[N] e) { e = Abs (x) }
            >
        }
    """)
    assert run_stages(model, TARGET, FAKE_STAGES[1:]).stages[0].nodes_before == 3


def test_a_pass_that_is_not_in_place_is_refused() -> None:
    class Copy(ir.passes.FunctionalPass):
        def call(self, model: ir.Model) -> ir.passes.PassResult:
            return ir.passes.PassResult(model.clone(), True)

    stages = [Stage(Phase.FOLD, "Copy", lambda _: True, lambda _: Copy())]
    with pytest.raises(TypeError, match="stage 'Copy' must work in place"):
        run_stages(_identities(), TARGET, stages)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"ep": "rocm"},
            UnknownEpError,
            "Unknown execution provider 'rocm'. Supported: ['cpu', 'cuda', ",
        ),
        ({"dtype": "f15"}, ValueError, "Unknown dtype 'f15'. Supported: "),
        ({"role": "text"}, UnknownRoleError, "Unknown model role 'text'. Supported: "),
    ],
)
def test_arguments_are_validated_before_anything_is_touched(
    arguments: dict[str, str], error: type[Exception], message: str
) -> None:
    model = _identities()
    before = ir.to_proto(model)
    with pytest.raises(error) as caught:
        optimize_model(model, **arguments)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)
    assert isinstance(caught.value, ValueError)
    assert ir.to_proto(model) == before


def test_nodes_in_any_order() -> None:
    # C098: a branch reads a value that the enclosing graph makes further down.
    model = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["" : 24]>
        unsorted (bool c, float[B, S, 8] x, float[B, S, 8] r, float[8] w) => (float[B, S, 8] z) {
            y = If (c) <
                then_branch = yes () => (float[B, S, 8] t) { t = Neg (n) },
                else_branch = no () => (float[B, S, 8] e) { e = Abs (total) }
            >
            n = RMSNormalization <axis = -1> (total, w)
            total = Add (x, r)
            z = Add (y, total)
        }
    """)
    report = optimize_model(model)
    assert [node.op_type for node in model.graph] == [
        "SkipSimplifiedLayerNormalization",
        "If",
        "Add",
    ]
    assert report.refusals == ()


def test_a_function_of_another_domain_that_stays_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 24, "their.layers" : 1]>
        theirs (float[N] x) => (float[N] y) { y = their.layers.Twice (x) }
        <domain: "their.layers", opset_import: ["" : 24]>
        Twice (x) => (y) { y = Add (x, x) }
    """
    optimize_model(ir.from_onnx_text(text))
    monkeypatch.setattr("mobius.optimizer.plan_for", lambda target: ())
    with pytest.raises(ValueError, match=r"\['their.layers::Twice'\] stayed, and 'default' allows"):
        optimize_model(ir.from_onnx_text(text))


def test_an_error_names_its_stage() -> None:
    class Fails(ir.passes.InPlacePass):
        def call(self, model: ir.Model) -> ir.passes.PassResult:
            raise ArithmeticError("no")

    stages = [Stage(Phase.LOWERING, "Failing", lambda _: True, lambda _: Fails())]
    with pytest.raises(ArithmeticError, match="no") as caught:
        run_stages(_identities(), TARGET, stages)
    assert caught.value.__notes__ == ["Raised by the optimisation stage 'Failing'."]


def test_a_model_proto_is_refused() -> None:
    with pytest.raises(TypeError, match=r"needs an onnx_ir.Model, not ModelProto. .*from_proto"):
        optimize_model(ir.to_proto(_identities()))


def test_the_call_of_the_specification() -> None:
    report = mobius.optimize_model(_identities(), ep="cuda", dtype=ir.DataType.FLOAT16)
    assert (report.ep, report.dtype, report.role) == ("cuda", ir.DataType.FLOAT16, "decoder")


def test_missed_gqa_warns_with_the_reasons() -> None:
    with pytest.warns(UserWarning, match="GQA fusion expected") as caught:
        report = optimize_model(
            ir.from_onnx_text(UNPROVED_MASK), ep="cuda", dtype=ir.DataType.FLOAT16
        )
    (warning,) = caught
    assert warning.filename == __file__
    first, *reasons = str(warning.message).split("\n")
    assert first == (
        "GQA fusion expected for ep='cuda'/dtype=FLOAT16 but found 0 GroupQueryAttention and 1 "
        "Attention nodes. The model may run slower than expected on this EP. Check that the "
        "attention pattern matches the GQA rewrite rule."
    )
    (reason,) = reasons
    assert reason.startswith("  refused 1 Attention: ")
    assert "mask" in reason
    assert report.warnings == (str(warning.message),)


@pytest.mark.parametrize(
    ("ep", "dtype", "role"),
    [
        ("default", "f16", "decoder"),
        ("cuda", "f32", "decoder"),
        ("onnx-standard", "f16", "decoder"),
        ("cuda", "f16", "vision"),
        ("cuda", "f16", "encoder"),
        ("cuda", "f16", "embedding"),
    ],
)
def test_no_warning_where_no_gqa_is_expected(ep: str, dtype: str, role: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = optimize_model(ir.from_onnx_text(UNPROVED_MASK), ep, dtype, role)
    assert report.warnings == ()


@pytest.mark.parametrize(("dtype", "logged"), [(None, 1), ("f32", 1), ("f16", 0)])
def test_a_model_in_another_dtype_is_logged(
    dtype: str | None, logged: int, caplog: pytest.LogCaptureFixture
) -> None:
    optimize_model(ir.from_onnx_text(UNPROVED_MASK), "onnx-standard", dtype)
    assert [record.getMessage() for record in caplog.records] == logged * [
        "The stages are chosen for FLOAT, but the model's float inputs and weights are FLOAT16. "
        "Pass the model's own dtype to optimize_model; it casts nothing."
    ]
