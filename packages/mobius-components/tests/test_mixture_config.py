"""`MixtureConfig` and `RouterConfig`: every error names class, field, value and need."""

import dataclasses
from typing import Any

import pytest

from mobius_components import ArchitectureConfig, ConfigError, MixtureConfig, RouterConfig
from mobius_components.models import CausalLMModel

MODEL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
MIXTURE: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
GROUPS = {"scoring": "sigmoid", "n_group": 4, "topk_group": 2, "group_score": "sum_of_two"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scoring": "tanh"}, "scoring is 'tanh'; needed: one of softmax, softmax_of_chosen"),
        ({"group_score": "mean"}, "group_score is 'mean'; needed: one of max, sum_of_two"),
        ({"n_group": 0}, "n_group is 0; needed: an integer of at least 1"),
        ({"topk_group": 2}, "topk_group is 2; needed: at most n_group, which is 1"),
        ({"norm_topk_prob": 1}, "norm_topk_prob is 1; needed: True or False"),
        ({"routed_scaling_factor": 0.0}, "routed_scaling_factor is 0.0; needed: a number above"),
        ({"norm_topk_min": -1.0}, "norm_topk_min is -1.0; needed: a number of at least zero"),
        ({"scoring": "sparsemixer"}, "router_jitter_noise is 0.0; needed: a number above zero"),
        ({"router_jitter_noise": 0.1}, "router_jitter_noise is 0.1; needed: 0.0 without"),
        (
            {"scoring": "softmax_of_chosen", "norm_topk_prob": True},
            "norm_topk_prob is True; needed: False with scoring 'softmax_of_chosen'",
        ),
        (
            {"scoring": "softmax_of_chosen", "e_score_correction_bias": True},
            "e_score_correction_bias is True; needed: False with scoring",
        ),
    ],
)
def test_a_router_that_contradicts_itself(fields, message):
    with pytest.raises(ConfigError) as error:
        RouterConfig(**fields)
    assert str(error.value).startswith(f"RouterConfig.{message}")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_experts": True}, "num_experts is True; needed: an integer of at least 1"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9; needed: at most num_experts"),
        ({"moe_latent_size": 0}, "moe_latent_size is 0; needed: an integer of at least 1"),
        ({"router": {"scoring": "softmax"}}, "router is {'scoring': 'softmax'}; needed: a Router"),
        ({"shared_expert_gate": True}, "shared_expert_gate is True; needed: False without"),
        ({"swiglu_limit": 0.0}, "swiglu_limit is 0.0; needed: a number above zero"),
        ({"scale_input": None}, "scale_input is None; needed: True or False"),
        (
            {"num_experts": 6, "router": RouterConfig(**GROUPS)},
            "num_experts is 6; needed: a multiple of n_group, which is 4",
        ),
        (
            {"num_experts_per_tok": 5, "router": RouterConfig(**GROUPS)},
            "num_experts_per_tok is 5; needed: at most 4, the experts of topk_group groups",
        ),
        (
            {"num_experts": 4, "router": RouterConfig(**GROUPS)},
            "num_experts is 4; needed: at least two in a group, whose best two count",
        ),
        (
            {
                "num_experts_per_tok": 3,
                "router": RouterConfig(scoring="sparsemixer", router_jitter_noise=0.1),
            },
            "num_experts_per_tok is 3; needed: 2 with scoring 'sparsemixer'",
        ),
    ],
)
def test_a_mixture_that_contradicts_itself(fields, message):
    with pytest.raises(ConfigError) as error:
        MixtureConfig(**{**MIXTURE, **fields})
    assert str(error.value).startswith(f"MixtureConfig.{message}")


@pytest.mark.parametrize(
    ("model", "mixture", "message"),
    [
        ({}, {"sparse_layers": [True]}, "sparse_layers is (True,); needed: 2 entries"),
        ({"hidden_act": "relu"}, {}, "hidden_act is 'relu'; needed: one of silu, swish"),
        ({}, {"expert_act": "tanh", "expert_gated": False}, "expert_act is 'tanh'; needed: one of"),
        ({"hidden_act": "gelu"}, {"swiglu_alpha": 1.7}, "swiglu_alpha is 1.7; needed: 1.0 with"),
    ],
)
def test_a_mixture_that_does_not_fit_its_model(model, mixture, message):
    with pytest.raises(ConfigError) as error:
        ArchitectureConfig(**MODEL, **model, moe=MixtureConfig(**MIXTURE, **mixture))
    owner = "ArchitectureConfig" if message.startswith("hidden_act") else "MixtureConfig"
    assert str(error.value).startswith(f"{owner}.{message}")


def test_experts_of_another_kind_than_the_other_layers():
    moe = MixtureConfig(**MIXTURE, expert_act="relu2", expert_gated=False)
    names = parameters(ArchitectureConfig(**MODEL, moe=moe))
    assert names["model.layers.0.mlp.experts.up_proj"] == (8, 32, 64)
    assert not [name for name in names if "gate_up_proj" in name]


def parameters(config: ArchitectureConfig) -> dict[str, tuple[int, ...]]:
    model = CausalLMModel(config)
    return {name: tuple(each.shape.numpy()) for name, each in model.named_parameters()}


def test_parameters_are_those_of_transformers():
    """Names of `Qwen2MoeSparseMoeBlock`, `DeepseekV3MoE`, `GptOssExperts` and `NemotronHMoE`."""
    moe = MixtureConfig(
        **MIXTURE,
        sparse_layers=(False, True),
        router=RouterConfig(**GROUPS, bias=True, e_score_correction_bias=True),
        expert_bias=True,
        moe_latent_size=16,
        shared_expert_intermediate_size=48,
        shared_expert_gate=True,
    )
    found = {
        name.partition(".mlp.")[2]: shape
        for name, shape in parameters(ArchitectureConfig(**MODEL, moe=moe)).items()
        if "layers.1.mlp" in name
    }
    assert found == {
        "gate.weight": (8, 64),
        "gate.bias": (8,),
        "gate.e_score_correction_bias": (8,),
        "experts.gate_up_proj": (8, 64, 16),
        "experts.gate_up_proj_bias": (8, 64),
        "experts.down_proj": (8, 16, 32),
        "experts.down_proj_bias": (8, 16),
        "fc1_latent_proj.weight": (16, 64),
        "fc2_latent_proj.weight": (64, 16),
        "shared_experts.gate_proj.weight": (48, 64),
        "shared_experts.up_proj.weight": (48, 64),
        "shared_experts.down_proj.weight": (64, 48),
        "shared_expert_gate.weight": (1, 64),
    }
    dense = [name for name in parameters(ArchitectureConfig(**MODEL, moe=moe)) if "s.0.mlp" in name]
    assert dense == [f"model.layers.0.mlp.{part}_proj.weight" for part in ("gate", "up", "down")]


def test_frozen_hashable_and_equal_by_value():
    moe = MixtureConfig(**MIXTURE, sparse_layers=[True, False])
    assert moe == MixtureConfig(**MIXTURE, sparse_layers=(True, False))
    assert len({moe, MixtureConfig(**MIXTURE)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        moe.num_experts = 1
