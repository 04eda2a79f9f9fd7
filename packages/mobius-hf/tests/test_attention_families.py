"""Configs of families whose attention is their own: what follows from them, what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.parity.reference import make_config

from mobius_components import ArchitectureConfig
from mobius_hf.architectures.deepseek_v3 import score_factor
from mobius_hf.architectures.ernie4_5_moe import ARCHITECTURE as ERNIE_MOE
from mobius_hf.config import read_config
from mobius_hf.errors import CheckpointConfigError
from mobius_hf.registry import find_architecture

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


def convert(folder: Path, model_type: str, change: dict[str, Any]) -> ArchitectureConfig:
    """Return the architecture of a tiny config, some of whose fields are changed in the file."""
    make_config(model_type).save_pretrained(folder)
    path = folder / "config.json"
    raw = read_config(path) | change
    path.write_text(json.dumps({key: value for key, value in raw.items() if value is not None}))
    architecture = find_architecture(model_type, config=path, has_own_code=False)
    return architecture.to_config(read_config(path), path)


@pytest.mark.parametrize(
    ("model_type", "change", "message"),
    [
        ("deepseek_v3", {"num_key_value_heads": 2}, "needs num_attention_heads, 4"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "needs 'sigmoid', the only value supported"),
        ("deepseek_v3", {"kv_lora_rank": None}, "lacks 'kv_lora_rank'"),
        ("minicpm3", {"num_key_value_heads": 2}, "needs num_attention_heads, 4"),
        ("deepseek_v2", {"topk_method": "best"}, "needs 'greedy' or 'group_limited_greedy'"),
        ("glm4_moe_lite", {"mlp_layer_types": ["thick"] * 3}, "a list of 'dense' and 'sparse'"),
        ("llama4_text", {"layer_types": [SLIDING] * 4}, "chunked_attention for each layer"),
        ("llama4_text", {"no_rope_layers": [1]}, "a list with 4 entries"),
        ("gpt_oss", {"swiglu_limit": 0.0}, "swiglu_limit is 0.0"),
        ("gemma3n_text", {"activation_sparsity_pattern": [1.0] * 6}, r"needs parts in \[0, 1\)"),
        ("gemma4_text", {"use_bidirectional_attention": "all"}, "needs 'vision'"),
        (
            "gemma4_text",
            {"per_layer_config": {"2": {"head_dim": 32}, "5": {"head_dim": 8}}},
            "the same for every full layer",
        ),
        (
            "gemma4_text",
            {"per_layer_config": {layer: {"head_dim": 32, "hidden_size": 8} for layer in "245"}},
            "num_key_value_heads and head_dim alone",
        ),
    ],
)
def test_refused(tmp_path: Path, model_type: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointConfigError, match=message):
        convert(tmp_path, model_type, change)


@pytest.mark.parametrize(
    ("model_type", "change"),
    [
        ("gemma3n_text", {"altup_lr_multiplier": 1.0, "query_pre_attn_scalar": 256}),
        ("dots1", {"scoring_func": "noaux_tc", "moe_layer_freq": 1, "topk_method": "noaux_tc"}),
        (
            "ernie4_5_moe",
            {
                "moe_capacity": [64, 64, 64],
                "moe_gate": "top2_fused",
                "moe_use_aux_free": True,
                "num_nextn_predict_layers": 1,
            },
        ),
    ],
)
def test_fields_of_published_files_change_nothing(
    tmp_path: Path, model_type: str, change: dict[str, Any]
) -> None:
    assert convert(tmp_path, model_type, change) == convert(tmp_path, model_type, {})


@pytest.mark.parametrize(
    ("model_type", "change", "message"),
    [
        ("dots1", {"scoring_func": "softmax"}, "needs 'sigmoid' or 'noaux_tc'"),
        ("dots1", {"moe_layer_freq": 2}, "moe_layer_freq is 2"),
        ("ernie4_5_moe", {"moe_use_aux_free": False}, "moe_use_aux_free is False"),
    ],
)
def test_other_routers_are_refused(
    tmp_path: Path, model_type: str, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointConfigError, match=message):
        convert(tmp_path, model_type, change)


def test_layers_that_predict_further_tokens_are_left_out() -> None:
    """The names are those of the ERNIE 4.5 checkpoints, whose config counts one such layer."""
    assert ERNIE_MOE.parameter_name("model.mtp_block.0.self_attn.q_proj.weight") is None
    assert ERNIE_MOE.parameter_name("model.mtp_linear_proj.0.weight") is None
    kept = "model.layers.0.self_attn.q_proj.weight"
    assert ERNIE_MOE.parameter_name(kept) == kept


def test_c026_heads_of_full_layers_in_both_spellings(tmp_path: Path) -> None:
    """transformers 5 writes them layer by layer, under indices with as many digits as the last."""
    kinds = [*[SLIDING] * 5, FULL] * 2
    for folder, spelling in {
        "own": {"per_layer_config": {"05": {"head_dim": 64}, "11": {"head_dim": 64}}},
        "global": {"global_head_dim": 64},
    }.items():
        change = {
            "num_hidden_layers": 12,
            "layer_types": kinds,
            "per_layer_config": None,
            "num_kv_shared_layers": 0,
            **spelling,
        }
        config = convert(tmp_path / folder, "gemma4_text", change)
        assert [config.heads(n) for n in (4, 5, 11)] == [(2, 16), (2, 64), (2, 64)]


def test_c026_fewer_heads_of_full_layers_where_values_are_keys(tmp_path: Path) -> None:
    shared = {"per_layer_config": None, "global_head_dim": 32, "num_global_key_value_heads": 1}
    for folder, equal in (("equal", True), ("other", False)):
        config = convert(tmp_path / folder, "gemma4_text", {**shared, "attention_k_eq_v": equal})
        assert config.heads(2) == (1 if equal else 2, 32)
        assert config.value_is_key == ((FULL,) if equal else ())


def test_llama4_layers_rotate_or_have_a_temperature(tmp_path: Path) -> None:
    config = convert(tmp_path, "llama4_text", {})
    assert config.layer_types == (CHUNKED, FULL, CHUNKED, CHUNKED)
    assert [config.rope(n) is not None for n in range(4)] == [True, False, True, True]
    assert config.query_temperature is not None
    assert config.query_temperature.without_rotation
    assert config.moe is not None
    assert config.moe.sparse_layers == (False, True, False, True)
    without = convert(tmp_path, "llama4_text", {"attn_temperature_tuning": False})
    assert without.query_temperature is None


@pytest.mark.parametrize(
    ("scaling", "factor"),
    [
        (None, 1.0),
        ({"rope_type": "linear", "factor": 4.0}, 1.0),
        ({"rope_type": "yarn", "factor": 40.0, "mscale": 1.0}, 1.0),
        ({"factor": 40.0, "mscale_all_dim": 0.707}, (0.0707 * math.log(40) + 1) ** 2),
        ({"factor": 1.0, "mscale_all_dim": 0.707}, 1.0),
    ],
)
def test_c014_yarn_scales_the_scores_of_latent_attention(
    scaling: dict[str, Any] | None, factor: float
) -> None:
    assert score_factor(scaling) == pytest.approx(factor)


def test_c035_scale_is_of_the_whole_head(tmp_path: Path) -> None:
    config = convert(tmp_path, "deepseek_v3", {})
    assert config.attention_scale == pytest.approx(24**-0.5 * (0.1 * math.log(4) + 1) ** 2)
    assert config.rope(0) is not None
    assert config.rope(0).dim == 8  # type: ignore[union-attr]


def test_the_part_of_a_head_that_does_not_rotate_may_be_odd(tmp_path: Path) -> None:
    config = convert(tmp_path, "deepseek_v3", {"qk_nope_head_dim": 9})
    assert (config.head_size, config.rotary_dim) == (17, 8)
