"""What the dense families refuse, with the field and the reason, rather than compute wrongly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.parity.reference import make_config

from mobius_hf.errors import CheckpointConfigError
from mobius_hf.registry import find_architecture

NEW_FALCON = {"new_decoder_architecture": True, "num_kv_heads": 2}


def _convert(folder: Path, model_type: str, change: dict[str, Any]) -> Any:
    """Convert the tiny config of `model_type` with fields changed, or removed where `None`."""
    make_config(model_type).save_pretrained(folder)
    path = folder / "config.json"
    raw = json.loads(path.read_text()) | change
    raw = {name: value for name, value in raw.items() if value is not None}
    architecture = find_architecture(raw["model_type"], config=path, has_own_code=False)
    return architecture.to_config(raw, path)


@pytest.mark.parametrize(
    ("model_type", "change", "message"),
    [
        ("falcon", {**NEW_FALCON, "parallel_attn": False}, "num_ln_in_parallel_attn is 2"),
        ("falcon", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn is 2"),
        ("falcon", {"apply_residual_connection_post_layernorm": True}, "needs False"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "needs False"),
        ("bloom", {"n_head": None}, "lacks 'n_head' or 'num_attention_heads'"),
        ("mpt", {"attn_config": {"prefix_lm": True}}, "attn_config.prefix_lm is True"),
        ("mpt", {"attn_config": {"qk_ln": True}}, "attn_config.qk_ln is True"),
        ("mpt", {"attn_config": {"alibi": False}}, "attn_config.alibi is False"),
        ("mpt", {"expansion_ratio": 2}, "expansion_ratio is 2"),
        ("mpt", {"logit_scale": 0.5}, "does not read: logit_scale = 0.5"),
        ("gptj", {"scale_attn_weights": False}, "scale_attn_weights is False"),
        ("gptj", {"rotary": False}, "rotary is False"),
        ("smollm3", {"use_sliding_window": False}, "use_sliding_window is False"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers is [1]"),
        ("cohere2", {"use_qk_norm": True}, "use_qk_norm is True"),
        ("cohere", {"logit_scale": 0.0}, "needs a number other than zero"),
        ("hyperclovax", {"logits_scaling": 0.0}, "needs a number other than zero"),
        ("cohere2", {"layer_switch": 2}, "layer_switch is 2"),
        ("hyperclovax", {"use_post_norm": False}, "use_post_norm is False"),
        ("hunyuan_v1_dense", {"use_cla": True}, "use_cla is True"),
        (
            "ministral3",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
            "needs llama_4_scaling_beta and original_max_position_embeddings",
        ),
        (
            "granite_swa",
            {"layer_types": ["sliding_attention"] * 3, "layer_rope_theta": [1e4, 500.0, 0]},
            "layer_rope_theta is [10000.0, 500.0, 0.0]; a 'granite_swa' config needs one base",
        ),
        ("granite_swa", {"layer_rope_theta": [1e4]}, "needs a list of 3 numbers"),
        ("afmoe", {"route_norm": False}, "route_norm is False"),
        ("cohere2_moe", {"expert_selection_fn": "tanh"}, "needs softmax or sigmoid"),
        (
            "cohere2_moe",
            {"shared_expert_combination_strategy": "max"},
            "shared_expert_combination_strategy is 'max'",
        ),
        ("cohere2_moe", {"mlp_layer_types": ["sparse"]}, "mlp_layer_types"),
        # Names as the file has them, and values.
        (
            "mixtral",
            {"hidden_act": "relu"},
            "hidden_act is 'relu'; a 'mixtral' config needs one",
        ),
        (
            "mixtral",
            {"num_local_experts": 1},
            "num_experts_per_tok is 2; a 'mixtral' config needs at most num_local_experts, which",
        ),
        ("gptj", {"n_embd": 66}, "n_embd is 66, n_head is 4, which makes head_dim None"),
        ("bloom", {"layer_norm_epsilon": -1.0}, "layer_norm_epsilon is -1.0; a 'bloom' config"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0.0; a 'gemma2'"),
        ("llama", {"rope_parameters": {"rope_type": []}}, "rope_type"),
        ("internlm3", {"bias": False, "qkv_bias": True}, "qkv_bias"),
        ("exaone", {"num_hidden_layers": None}, "lacks 'num_hidden_layers'"),
        ("apertus", {"post_norm": True}, "post_norm is True"),
        ("exaone4", {"layer_types": ["mamba"] * 3}, "needs full_attention or sliding"),  # C131
    ],
)
def test_refused(tmp_path: Path, model_type: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointConfigError) as error:
        _convert(tmp_path, model_type, change)
    assert message in str(error.value)


def test_falcon_7b_has_one_key_head_whatever_the_file_counts(tmp_path: Path) -> None:
    assert _convert(tmp_path, "falcon", {"num_kv_heads": 4}).kv_heads == 1


def test_names_that_two_fields_share(tmp_path: Path) -> None:
    """Case C130: older BLOOM files say `n_embed` and `num_attention_heads`."""
    change = {"hidden_size": None, "n_embed": 48, "n_head": None, "num_attention_heads": 4}
    config = _convert(tmp_path, "bloom", change)
    assert (config.hidden_size, config.num_attention_heads) == (48, 4)


@pytest.mark.parametrize("rotary_dim", [14, 16])
def test_as_many_elements_of_a_head_rotate_as_gptj_says(tmp_path: Path, rotary_dim: int) -> None:
    assert _convert(tmp_path, "gptj", {"rotary_dim": rotary_dim}).rotary_dim == rotary_dim


@pytest.mark.parametrize("rotary_dim", range(2, 90, 2))
def test_no_rotating_element_is_lost_to_rounding(tmp_path: Path, rotary_dim: int) -> None:
    change = {"n_embd": 88 * 4, "n_head": 4, "rotary_dim": rotary_dim}
    assert _convert(tmp_path, "gptj", change).rotary_dim == rotary_dim


def test_alpha_stretches_the_rotary_base_of_hunyuan(tmp_path: Path) -> None:
    config = _convert(tmp_path, "hunyuan_v1_dense", {})
    assert config.rope_theta == pytest.approx(10000.0 * 50.0 ** (16 / 14))
    assert config.rope_scaling is None


MOE = "hunyuan_v1_moe"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_head_dim": 8}, "attention_head_dim is 8; .* head_dim, which is 16"),
        ({"moe_topk": [2, 3, 2]}, r"moe_topk is \[2, 3, 2\]; .* an integer, or 3 that are all"),
        ({"moe_topk": [2, 2]}, "an integer, or 3 that are all the same"),
        ({"moe_intermediate_size": [96, 96, 64]}, "moe_intermediate_size is"),
        ({"moe_intermediate_size": [64] * 3}, "moe_intermediate_size is .* 96 for each layer"),
        ({"num_shared_expert": [2] * 3}, "num_shared_expert is .* 1 for each layer"),
        ({"use_mixed_mlp_moe": False}, "use_mixed_mlp_moe is False"),
        ({"moe_layer_num_skipped": 1}, "moe_layer_num_skipped is 1"),
        ({"vit_type": "Vit-g"}, "vit_type is 'Vit-g'; .* None, the only"),
        ({"rope_parameters": {"type": "dynamic", "alpha": "big", "factor": 1.0}}, "alpha is 'big'"),
    ],
)
def test_hunyuan_with_layers_that_differ(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    """What transformers has one number for, whatever the file lists for each layer."""
    with pytest.raises(CheckpointConfigError, match=message):
        _convert(tmp_path, MOE, change)


def test_hunyuan_as_it_is_published(tmp_path: Path) -> None:
    """Lists with a number for each layer, the older name of the head's width, a longer scaling."""
    rope = {"alpha": 50.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0}
    change = {
        "head_dim": None,
        "attention_head_dim": 16,
        "moe_intermediate_size": [96] * 3,
        "moe_topk": [2] * 3,
        "num_shared_expert": [1] * 3,
        "rope_parameters": None,
        "rope_theta": 10000.0,
        "rope_scaling": {**rope, "mscale_all_dim": 1.0, "type": "dynamic"},
    }
    assert _convert(tmp_path, MOE, change) == _convert(tmp_path, MOE, {})


def test_exaone4_rotates_everywhere_without_a_window(tmp_path: Path) -> None:
    change = {"sliding_window": None, "layer_types": ["full_attention"] * 3}
    make_config("exaone4").save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text()) | change
    architecture = find_architecture("exaone4", config=tmp_path, has_own_code=False)
    config = architecture.to_config(raw, tmp_path)
    assert config.rope_layers == (True, True, True)
