"""The stage table: which stages run for which target, written down in plans.txt.

Run this file as a script to write plans.txt anew.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import onnx_ir as ir
import pytest

from mobius.dtypes import parse_dtype
from mobius.op_support import (
    OP_CAPABILITY,
    lacks_of,
    runs,
    runs_node,
    uses_of,
    wrong_attributes,
    wrong_uses,
)
from mobius.opsets import UnsupportedOpsetError
from mobius.pipeline import STAGES, left_out, plan, plan_for
from mobius.quantization import QuantizationConfig
from mobius.roles import Role
from mobius.stage import Phase, Target
from mobius.tasks.base import OPSET_VERSION
from mobius_eps import EpCapabilities, Lack, UnknownEpError, ep_registry, get_ep
from mobius_eps.capabilities import NEWEST_OPSET

EPS = ("default", "cpu", "cuda", "dml", "webgpu", "mlx", "trt-rtx", "onnx-standard")
DTYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
PLANS = Path(__file__).with_name("plans.txt")
HINT = "If the change is wanted, run: python packages/mobius-build/tests/test_pipeline.py"


def plan_lines() -> list[str]:
    """Return a line for each target: the target, then the stages, phases parted by a bar."""
    lines = []
    for ep, dtype, role in itertools.product(EPS, DTYPES, Role):
        stages = plan(ep, dtype, role)
        phases = [
            " ".join(stage.name for stage in stages if stage.phase is phase) for phase in Phase
        ]
        lines.append(f"{ep:<13} {dtype.name:<8} {role:<9} {' | '.join(phases)}".rstrip())
    return lines


def names(ep: str | EpCapabilities, dtype: str, role: str = "decoder") -> list[str]:
    return [stage.name for stage in plan(ep, dtype, role)]


def test_plans_are_those_of_the_file() -> None:
    assert plan_lines() == PLANS.read_text(encoding="utf-8").splitlines(), HINT


def test_order_of_the_table() -> None:
    phases = [stage.phase for stage in STAGES]
    assert phases == sorted(phases, key=list(Phase).index)
    stage_names = [stage.name for stage in STAGES]
    assert len(set(stage_names)) == len(stage_names)


def test_names_are_those_of_the_specification() -> None:
    # C137: a stage is called what it does.
    assert [stage.name for stage in STAGES if stage.phase is Phase.FUSION] == [
        "RMSNormFusion",
        "LayerNormFusion",
        "RotaryFusion",
        "AttentionFusion",
        "GQAFusion",
        "FusedMatMul",
        "PackQKV",
        "SkipNorm",
        "SkipLayerNorm",
        "RecurrenceFusion",
        "MoEFusion",
        "GeluFusion",
        "PackedMultiHeadAttention",
        "BiasGelu",
        "Quantize",
        "FusedFloatMatMul",
        "QMoEFusion",
    ]
    assert [stage.name for stage in STAGES if stage.phase is Phase.INLINE] == [
        "LowerMatMulNBits",
        "LowerBooleanMask",
        "LowerFusedMatMul",
        "InlinePass",
    ]
    assert [stage.name for stage in STAGES if stage.phase is Phase.LOWERING] == [
        "SeparateRoPE",
        "UnpackQKV",
        "LowerAttention",
        "LowerRotaryEmbedding",
        "LowerRMSNormalization",
        "LowerLayerNormalization",
        "LowerGelu",
        "LowerSwish",
        "LowerOr",
        "EliminateShape",
        "LowerOpset",
    ]


def test_a_stage_says_when_it_runs() -> None:
    fields = {field.name for field in dataclasses.fields(EpCapabilities)}
    always = {stage.name for stage in STAGES if not stage.needs}
    assert always == {
        *("Cleanup", "RMSNormFusion", "LayerNormFusion", "RotaryFusion", "AttentionFusion"),
        *("InlinePass", "Fold"),
    }
    for ep in EPS:
        target = Target(ep_registry[ep], ir.DataType.BFLOAT16, Role.VISION)
        ran = {stage.name for stage in plan_for(target)}
        reasons = {each.name: each.reason for each in left_out(target)}
        assert always <= ran
        assert {*ran, *reasons} == {stage.name for stage in STAGES}
        assert ran.isdisjoint(reasons)
    assert all(set(stage.reads) <= fields for stage in STAGES)


def test_why_a_stage_does_not_run() -> None:
    target = Target(ep_registry["dml"], ir.DataType.FLOAT, Role.DECODER)
    reasons = {each.name: each.reason for each in left_out(target)}
    assert reasons["GQAFusion"] == (
        "It needs a decoder, and GroupQueryAttention in the dtype. For dml gqa_dtypes is f16."
    )
    assert reasons["LowerOr"] == "It needs a target that lacks Or, or a use of it."


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.DECODER])
@pytest.mark.parametrize("ep", EPS)
def test_only_decoders_get_gqa(ep: str, role: Role) -> None:
    for dtype in DTYPES:
        planned = {stage.name for stage in plan(ep, dtype, role)}
        assert not planned & {"GQAFusion", "PackQKV", "SeparateRoPE", "UnpackQKV"}


@pytest.mark.parametrize(
    ("ep", "dtypes"),
    [
        ("default", ""),
        ("cpu", "f32"),
        ("cuda", "f16 bf16"),
        ("dml", "f16"),
        ("webgpu", "f32 f16"),
        ("mlx", "f32 f16 bf16"),
        ("trt-rtx", "f16 bf16"),
        ("onnx-standard", ""),
    ],
)
def test_gqa_dtypes_of_the_specification(ep: str, dtypes: str) -> None:
    fused = [dtype for dtype in ("f32", "f16", "bf16") if "GQAFusion" in names(ep, dtype)]
    assert fused == dtypes.split()


def test_gqa_is_lowered_for_dml_only() -> None:
    for ep in EPS:
        lowered = {"SeparateRoPE", "UnpackQKV"} <= set(names(ep, "f16"))
        assert lowered == (ep == "dml")


@pytest.mark.parametrize("ep", ["default", "cpu", "cuda", "mlx"])
def test_who_runs_every_standard_operator_has_nothing_lowered(ep: str) -> None:
    for dtype, role in itertools.product(DTYPES, Role):
        assert [s for s in plan(ep, dtype, role) if s.phase is Phase.LOWERING] == []


def test_standard_attention_is_taken_apart_where_its_mask_cannot_be_changed() -> None:
    for dtype, role in itertools.product(DTYPES, Role):
        planned = plan("onnx-standard", dtype, role)
        assert [s.name for s in planned if s.phase is Phase.LOWERING] == ["LowerAttention"]
        assert "LowerBooleanMask" in [s.name for s in planned]


def test_an_older_opset_lowers_what_it_lacks() -> None:
    def lowered(opset: int | None, ep: str = "onnx-standard") -> list[str]:
        stages = plan(ep, "f32", opset=opset)
        return [stage.name for stage in stages if stage.phase is Phase.LOWERING]

    since_23 = ["LowerAttention", "LowerRotaryEmbedding", "LowerRMSNormalization"]
    assert lowered(None) == lowered(24) == ["LowerAttention"]
    assert lowered(23) == ["LowerAttention", "LowerSwish", "LowerOpset"]
    assert lowered(22) == [*since_23, "LowerSwish", "LowerOpset"]
    assert lowered(19) == lowered(17) == [*since_23, "LowerGelu", "LowerSwish", "LowerOpset"]
    # What the provider cannot load, no user's wish brings back.
    assert lowered(24, "dml") == lowered(None, "dml")
    # A chain of operators is not made a GELU that would be taken apart again.
    assert "GeluFusion" not in [stage.name for stage in plan("onnx-standard", "f32", opset=19)]


@pytest.mark.parametrize("opset", [16, 25, True, "17", 17.0])
def test_opsets_that_nothing_is_built_for(opset: object) -> None:
    with pytest.raises(UnsupportedOpsetError) as error:
        plan("default", "f32", opset=opset)  # type: ignore[arg-type]
    assert str(error.value) == (
        f"Unsupported opset {opset!r}; an int from 17 to 24 is needed, or None for the newest one "
        "that the execution provider runs."
    )
    assert isinstance(error.value, ValueError)


def test_models_are_written_in_the_newest_opset() -> None:
    assert OPSET_VERSION == NEWEST_OPSET
    assert ep_registry["default"].max_opset == NEWEST_OPSET


def test_a_model_that_is_older_is_not_given_newer_operators() -> None:
    def planned(model_opset: int) -> set[str]:
        target = dataclasses.replace(_target("default"), model_opset=model_opset)
        return {stage.name for stage in plan_for(target)}

    assert "GeluFusion" in planned(20)
    assert "GeluFusion" not in planned(19)
    assert "LowerOpset" not in planned(18)
    assert "LowerOpset" in planned(25)


def test_a_model_that_is_raised_is_given_what_the_newer_opset_has() -> None:
    def planned(ep: str, **opsets: int) -> set[str]:
        target = dataclasses.replace(_target(ep), **opsets)  # type: ignore[arg-type]
        return {stage.name for stage in plan_for(target)}

    assert "RaiseOpset" not in planned("default", model_opset=24)
    assert "RaiseOpset" in planned("default", model_opset=13)
    raised = planned("default", model_opset=13, raised_opset=24)
    assert {"RaiseOpset", "GeluFusion"} <= raised
    assert "LowerOpset" not in raised
    # Fused in the newest opset, then brought down.
    assert _target("dml").raise_goal == 24
    assert "LowerOpset" in planned("dml", model_opset=13, raised_opset=24)
    # Below opset 18 there is no way back for all.
    assert dataclasses.replace(_target("default"), opset=17).raise_goal == 17


def test_a_provider_that_is_not_registered() -> None:
    capabilities = EpCapabilities(name="unregistered", gqa_dtypes=frozenset({DTYPES[1]}))
    assert "GQAFusion" in names(capabilities, "f16")
    assert "GQAFusion" not in names(capabilities, "f32")


@pytest.mark.parametrize(
    ("ep", "dtype", "role"), [("rocm", "f16", "decoder"), ("cpu", "f15", "decoder")]
)
def test_unknown_arguments(ep: str, dtype: str, role: str) -> None:
    with pytest.raises(ValueError, match="Unknown"):
        plan(ep, dtype, role)


def test_unknown_ep_is_the_specification_s_error() -> None:
    with pytest.raises(UnknownEpError, match=r"Unknown execution provider 'rocm'\. "):
        plan("rocm", "f16")


def _target(ep: str | EpCapabilities, dtype: str = "f16") -> Target:
    capabilities = get_ep(ep) if isinstance(ep, str) else ep
    return Target(capabilities, parse_dtype(dtype), Role.DECODER)


@pytest.mark.parametrize("operator", OP_CAPABILITY)
def test_onnx_standard_runs_no_custom_operator(operator: tuple[str, str]) -> None:
    assert not runs(_target("onnx-standard"), *operator)


def test_mask_operators_run_nowhere() -> None:
    for ep in EPS:
        assert not runs(_target(ep), "mobius.mask", "CausalMask")


def test_runs() -> None:
    assert runs(_target("cuda"), "", "Attention")
    assert runs(_target("cuda"), "com.microsoft", "SkipLayerNormalization")
    assert not runs(_target("trt-rtx"), "com.microsoft", "SkipLayerNormalization")
    assert runs(_target("trt-rtx"), "com.microsoft", "GroupQueryAttention")
    assert not runs(_target("cuda"), "my.domain", "Anything")


def test_runs_asks_opset_and_uses() -> None:
    old = dataclasses.replace(_target("onnx-standard"), opset=22)
    assert not runs(old, "", "Attention")
    assert runs(old, "", "Gelu")
    model = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>
        uses (float[B, S, 32] x, float[B, 2, P, 16] pk, float[B, 2, P, 16] pv)
            => (float[B, S, 32] y, float[B, S, 32] z) {
            y = Attention <q_num_heads = 2, kv_num_heads = 2> (x, x, x)
            z, k, v = Attention <q_num_heads = 2, kv_num_heads = 2, softcap = 0.0>
                (x, x, x, , pk, pv)
        }
    """)
    plain, cached = model.graph
    assert set(uses_of(plain)) == {"q_num_heads", "kv_num_heads"}
    assert set(uses_of(cached)) == {"q_num_heads", "kv_num_heads", "past_key", "past_value"}
    model.graph.outputs.append(cached.outputs[1])
    assert set(uses_of(cached)) >= {"past_key", "past_value", "present_key"}
    assert runs_node(_target("trt-rtx"), plain)
    assert not runs_node(_target("trt-rtx"), cached)
    # The dtype is the node's own.
    float16 = dataclasses.replace(
        get_ep("cuda"), lacks=[Lack("Attention", dtypes={ir.DataType.FLOAT16}, reason="none")]
    )
    assert not runs(_target(float16), "", "Attention")
    assert runs_node(_target(float16), plain)
    assert lacks_of(_target(float16), "", "Attention")[0].reason == "none"


def test_experts_are_fused_when_it_is_known_what_they_are() -> None:
    def fused(ep: str, dtype: str, quantization: QuantizationConfig | None) -> list[str]:
        target = dataclasses.replace(_target(ep, dtype), quantization=quantization)
        names = [stage.name for stage in plan_for(target)]
        return [name for name in names if "MoE" in name or name == "Quantize"]

    assert fused("cpu", "f32", None) == ["MoEFusion"]
    assert fused("cpu", "f32", QuantizationConfig()) == ["Quantize", "QMoEFusion"]
    # There is no MoE in float16, and QMoE is made of integers alone.
    assert fused("cpu", "f16", None) == []
    assert fused("cpu", "f16", QuantizationConfig()) == ["Quantize", "QMoEFusion"]
    assert fused("onnx-standard", "f32", QuantizationConfig()) == ["Quantize"]


def test_values_of_attributes_decide() -> None:
    def node(**attributes: int) -> ir.Node:
        x = ir.val("x", ir.DataType.FLOAT16, [1, 32])
        return ir.node("QMoE", [x], attributes, domain="com.microsoft")

    uses = {"accuracy_level=0", "block_size=64", "expert_weight_bits=4"}
    assert uses < set(uses_of(node(block_size=64)))
    assert runs_node(_target("cuda"), node(block_size=64))
    assert not runs_node(_target("cuda"), node(block_size=32))
    assert runs_node(_target("cpu"), node(block_size=32))
    assert runs_node(_target("cpu"), node(expert_weight_bits=8, accuracy_level=4))
    assert not runs_node(_target("cpu"), node(expert_weight_bits=8))
    wrong = wrong_uses(_target("cpu"), "com.microsoft", "QMoE")
    assert list(wrong) == ["expert_weight_bits=8, accuracy_level=0"]
    assert wrong_uses(_target("dml"), "com.microsoft", "BiasGelu") == {}


def test_lacks_say_what_is_run() -> None:
    lacking = dataclasses.replace(
        get_ep("cuda"),
        lacks=(
            Lack("FusedMatMul", "com.microsoft", frozenset({ir.DataType.BFLOAT16})),
            Lack("GroupQueryAttention", "com.microsoft", attribute="softcap"),
            Lack("BiasGelu", "com.microsoft"),
        ),
    )
    assert runs(_target(lacking), "com.microsoft", "FusedMatMul")
    assert not runs(_target(lacking, "bf16"), "com.microsoft", "FusedMatMul")
    assert runs(_target(lacking), "com.microsoft", "GroupQueryAttention")
    assert not runs(_target(lacking), "com.microsoft", "GroupQueryAttention", "softcap")
    assert wrong_attributes(_target(lacking), "com.microsoft", "GroupQueryAttention") == {"softcap"}
    assert wrong_attributes(_target(lacking), "com.microsoft", "BiasGelu") == frozenset()
    assert "FusedMatMul" in names(lacking, "f16")
    assert "FusedMatMul" not in names(lacking, "bf16")
    # The stage makes FastGelu too, which this target runs.
    assert "BiasGelu" in names(lacking, "f16")
    neither = (*lacking.lacks, Lack("FastGelu", "com.microsoft"))
    assert "BiasGelu" not in names(dataclasses.replace(lacking, lacks=neither), "f16")


if __name__ == "__main__":
    PLANS.write_text("\n".join(plan_lines()) + "\n", encoding="utf-8")
