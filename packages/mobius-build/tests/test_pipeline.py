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
from mobius.op_support import OP_CAPABILITY, runs, wrong_attributes
from mobius.pipeline import STAGES, plan
from mobius.roles import Role
from mobius.stage import Phase, Target
from mobius_eps import EpCapabilities, Lack, UnknownEpError, get_ep

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
        "GQAFusion",
        "FusedMatMul",
        "PackQKV",
        "SkipNorm",
        "SkipLayerNorm",
        "GeluFusion",
        "BiasGelu",
    ]
    assert [stage.name for stage in STAGES if stage.phase is Phase.LOWERING] == [
        "SeparateRoPE",
        "UnpackQKV",
    ]


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


def test_lowering_is_for_dml_only() -> None:
    for ep in EPS:
        lowered = {"SeparateRoPE", "UnpackQKV"} <= set(names(ep, "f16"))
        assert lowered == (ep == "dml")


def test_a_provider_that_is_not_registered() -> None:
    capabilities = EpCapabilities(name="unregistered", gqa_dtypes=frozenset({DTYPES[1]}))
    assert "GQAFusion" in names(capabilities, "f16")
    assert "GQAFusion" not in names(capabilities, "f32")


@pytest.mark.parametrize(
    ("change", "stage"),
    [
        ({"gqa_dtypes": frozenset(), "qkv_pack_dtypes": frozenset()}, "GQAFusion"),
        ({"qkv_pack_dtypes": frozenset()}, "PackQKV"),
        ({"supports_skip_layer_norm": False}, "SkipNorm"),
        ({"supports_skip_layer_norm": False}, "SkipLayerNorm"),
        ({"supports_fused_matmul": False}, "FusedMatMul"),
    ],
)
def test_each_capability_has_a_reader(change: dict[str, object], stage: str) -> None:
    cuda = get_ep("cuda")
    assert stage in names(cuda, "f16")
    assert stage not in names(dataclasses.replace(cuda, **change), "f16")  # type: ignore[arg-type]


def test_fused_rope_has_a_reader() -> None:
    cuda = dataclasses.replace(get_ep("cuda"), supports_fused_rope=False)
    assert {"SeparateRoPE", "UnpackQKV"} <= set(names(cuda, "f16"))


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


def test_lacks_have_a_reader() -> None:
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
