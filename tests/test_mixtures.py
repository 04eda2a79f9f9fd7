"""Mixtures of experts on every EP: a kernel for each node, and a cost that ignores the experts."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir
import pytest
from tests.kernel_tables import uses
from tests.test_kernel_tables import CELLS, IDS, PLAIN, TABLES, build, needs_tables, without_kernel

from mobius import ep_registry
from mobius.op_support import runs_node
from mobius.roles import Role
from mobius.stage import Target
from mobius_components import ArchitectureConfig, MixtureConfig, RouterConfig
from mobius_ir_rules.testing import op_counts

MOE = "com.microsoft::MoE"
LAYERS = 2


def mixture(router: RouterConfig, experts: int = 8, **fields: object) -> ArchitectureConfig:
    moe = MixtureConfig(
        num_experts=experts,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        router=router,
        **fields,
    )
    return dataclasses.replace(PLAIN, moe=moe)


CONFIGS = {
    "mixtral": mixture(RouterConfig(norm_topk_prob=True)),
    "qwen2_moe": mixture(
        RouterConfig(), shared_expert_intermediate_size=48, shared_expert_gate=True
    ),
    "deepseek_v3": mixture(
        RouterConfig(
            scoring="sigmoid",
            e_score_correction_bias=True,
            norm_topk_prob=True,
            norm_topk_epsilon=1e-20,
            n_group=4,
            topk_group=2,
            group_score="sum_of_two",
            routed_scaling_factor=2.5,
            float32=True,
        ),
        shared_expert_intermediate_size=48,
    ),
    "phimoe": mixture(RouterConfig(scoring="sparsemixer", router_jitter_noise=0.01)),
    "gpt_oss": mixture(
        RouterConfig(scoring="softmax_of_chosen", bias=True),
        expert_bias=True,
        interleaved=True,
        swiglu_alpha=1.702,
        swiglu_beta=1.0,
        swiglu_limit=7.0,
    ),
    "llama4": mixture(RouterConfig(scoring="sigmoid"), scale_input=True),
    "nemotron_h": dataclasses.replace(
        mixture(RouterConfig(scoring="sigmoid"), moe_latent_size=32),
        hidden_act="relu2",
        mlp_gated=False,
    ),
}
STAYS = {"llama4", "nemotron_h"}  # no kernel scales inputs; only CUDA's squares relu

WRITTEN_LIST = {
    "dml": (
        {"ScatterElements"},
        "DirectML's table ends at version 16 of the operator, opset 21 has version 18: which token "
        "a row is for is written on the CPU, once a layer.",
    ),
    "webgpu": (
        {
            *("Add", "Cast", "Concat", "CumSum", "Div", "Equal", "Expand", "Gather"),
            *("GatherElements", "LessOrEqual", "Max", "Min", "Mul", "Range", "ReduceSum"),
            *(
                "Reshape",
                "ScatterElements",
                "Shape",
                "Size",
                "Slice",
                "Squeeze",
                "Sub",
                "Unsqueeze",
            ),
        },
        "WebGPU has no 64-bit integers, and the plan of which rows an expert gets is made of them: "
        "a few bytes a token, on the CPU, once a layer.",
    ),
}
"""Operators that may stay without a kernel where they work on int64, with the reason."""


@needs_tables
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    ("ep", "dtype"), [cell for cell in CELLS if cell[0] in ("cpu", "cuda", "dml", "webgpu", "mlx")]
)
def test_every_node_has_a_kernel(ep: str, dtype: ir.DataType, name: str) -> None:
    dense = {use.shown for use in without_kernel(build(PLAIN, ep, dtype), ep, TABLES[ep])}
    missing = without_kernel(build(CONFIGS[name], ep, dtype), ep, TABLES[ep])
    written, _ = WRITTEN_LIST.get(ep, (set(), ""))
    assert [
        use.shown
        for use in missing
        if use.shown not in dense
        and (use.domain or use.op_type not in written or "int64" not in use.types.values())
    ] == []


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("ep", "dtype"), CELLS, ids=IDS)
def test_fused_where_the_target_has_a_kernel(ep: str, dtype: ir.DataType, name: str) -> None:
    model = build(CONFIGS[name], ep, dtype)
    target = Target(ep_registry[ep], dtype, Role.DECODER)
    fused = ep == "cuda" or (ep in ("cpu", "default") and dtype == ir.DataType.FLOAT)
    assert op_counts(model)[MOE] == (LAYERS if fused and name not in STAYS else 0)
    assert "mobius.moe" not in model.opset_imports
    assert [node for node in model.graph.all_nodes() if not runs_node(target, node)] == []
    for _ in uses(model):  # raises where a value has no dtype, or dtypes do not meet
        pass


@pytest.mark.parametrize("ep", ["cuda", "cpu", "onnx-standard", "webgpu"])
def test_as_many_nodes_for_128_experts_as_for_8(ep: str) -> None:
    for name in ("mixtral", "deepseek_v3"):
        few = CONFIGS[name]
        assert few.moe is not None
        many = dataclasses.replace(few, moe=dataclasses.replace(few.moe, num_experts=128))
        dtype = ir.DataType.FLOAT
        counts = [op_counts(build(config, ep, dtype)) for config in (few, many)]
        assert counts[0] == counts[1]
        loops = {"Loop", "Scan", "If"}
        assert not loops & counts[0].keys()


def test_logits_go_into_the_operator_as_they_are() -> None:
    """Nothing of a router is left but its product, where MoE computes the rest itself."""
    for name in ("mixtral", "qwen2_moe", "gpt_oss"):
        model = build(CONFIGS[name], "cuda", ir.DataType.BFLOAT16)
        counts = op_counts(model)
        assert counts["TopK"] == counts["Log"] == counts["GatherElements"] == 0
        for node in model.graph:
            if node.op_type == "MoE":
                assert node.inputs[1].dtype == ir.DataType.BFLOAT16
                assert node.inputs[1].producer().op_type == "Reshape"
                assert all(value is None or value.is_initializer() for value in node.inputs[2:])


def test_routers_that_are_float32_stay_so() -> None:
    """The choice and the shares are float32, and so are the router's weights."""
    model = build(CONFIGS["deepseek_v3"], "cuda", ir.DataType.BFLOAT16)
    weights = {
        name.rpartition("mlp.")[2]: value.dtype
        for name, value in model.graph.initializers.items()
        if "layers.0.mlp." in name
    }
    assert weights["gate.weight"] == weights["gate.e_score_correction_bias"] == ir.DataType.FLOAT
    assert weights["experts.gate_up_proj"] == ir.DataType.BFLOAT16
    for node in model.graph:
        if node.op_type == "TopK":
            assert node.inputs[0].dtype == ir.DataType.FLOAT
