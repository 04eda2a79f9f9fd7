"""`ArchitectureConfig`: defaults are resolved, and every error names field, value and need."""

import dataclasses

import onnx_ir as ir
import pytest

from mobius_components import ArchitectureConfig, ConfigError
from mobius_components.config import LAYER_LAYOUTS
from mobius_components.layers.layouts import LAYOUTS

BASE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def test_defaults_are_resolved():
    config = ArchitectureConfig(**BASE)
    assert (config.kv_heads, config.head_size, config.rotary_dim) == (4, 16, 16)
    assert config.layer_types == ("full_attention", "full_attention")
    assert config.window(0) is None


def test_head_dim_may_differ_from_hidden_over_heads():
    """Case C026."""
    assert ArchitectureConfig(**BASE, head_dim=32).head_size == 32


def test_all_layers_slide_without_layer_types():
    config = ArchitectureConfig(**BASE, sliding_window=8)
    assert [config.window(layer) for layer in range(2)] == [8, 8]


def test_only_listed_layers_slide():
    """Case C013."""
    kinds = ("full_attention", "sliding_attention")
    config = ArchitectureConfig(**BASE, sliding_window=8, layer_types=kinds)
    assert [config.window(layer) for layer in range(2)] == [None, 8]


def test_rope_scaling_with_the_old_key_and_the_old_name():
    """Cases C006 and C031: `type` for `rope_type`, `su` for `longrope`."""
    scaling = {"type": "su", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config = ArchitectureConfig(**BASE, rope_scaling=scaling)
    assert config.rope_scaling["rope_type"] == "longrope"
    assert "type" not in config.rope_scaling
    assert scaling["type"] == "su"  # the caller's mapping is not changed


def test_frozen_all_the_way_down():
    config = ArchitectureConfig(**BASE, rope_scaling={"rope_type": "linear", "factor": 2.0})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.hidden_size = 1
    with pytest.raises(TypeError):
        config.rope_scaling["factor"] = 3.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 0}, "vocab_size is 0; needed: an integer of at least 1"),
        ({"hidden_size": 6.4}, "hidden_size is 6.4; needed: an integer of at least 1"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True; needed: an integer"),
        (
            {"num_key_value_heads": 3},
            "num_key_value_heads is 3; needed: a divisor of num_attention_heads, which is 4",
        ),
        (
            {"hidden_size": 66},
            "head_dim is None; needed: a value, because hidden_size, which is 66, is no",
        ),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5; needed: a factor in"),
        ({"partial_rotary_factor": 0.2}, "that makes an even part of head_dim, which is 16"),
        ({"rope_theta": -1.0}, "rope_theta is -1.0; needed: a number above zero, or None"),
        (
            {"rope_theta": None, "rope_scaling": {"rope_type": "linear", "factor": 2}},
            "needed: None without a rope_theta",
        ),
        (
            {"rope_scaling": {"rope_type": "spiral"}},
            "needed: a rope_type of default, linear, dynamic, llama3, yarn, longrope, proportional",
        ),
        ({"hidden_act": "sine"}, "hidden_act is 'sine'; needed: one of gelu, gelu_fast"),
        ({"qk_norm": "some"}, "qk_norm is 'some'; needed: one of None, head, each_head, full"),
        (
            {"qk_norm": "each_head"},
            "qk_norm_type is 'rms'; needed: one of layer_no_bias",
        ),
        ({"qkv_clip": 0.0}, "qkv_clip is 0.0; needed: a number above zero"),
        ({"embedding_size": 0}, "embedding_size is 0; needed: an integer of at least 1"),
        ({"norm_type": "batch"}, "norm_type is 'batch'; needed: one of rms, rms_plain, layer"),
        ({"dtype": ir.DataType.INT8}, "needed: one of FLOAT, FLOAT16, BFLOAT16"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps is 0.0; needed: a number above zero"),
        ({"attention_scale": -1.0}, "attention_scale is -1.0; needed: a number above zero"),
        ({"sliding_window": 0}, "sliding_window is 0; needed: an integer of at least 1"),
        ({"layer_types": ("full_attention",)}, "needed: 2 entries, one for each layer"),
        (
            {"layer_types": ("full_attention", "hyena")},
            "layer_types is 'hyena'; needed: full_attention or sliding_attention",
        ),
        (
            {"layer_types": ("full_attention", "sliding_attention")},
            "sliding_window is None; needed: a value, because layer_types has sliding_attention",
        ),
    ],
)
def test_errors(change, message):
    with pytest.raises(ConfigError) as error:
        ArchitectureConfig(**{**BASE, **change})
    assert message in str(error.value)
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf; needed: a number above zero"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'; needed: True or False"),
        ({"model_type": 3}, "model_type is 3; needed: a string"),
        ({"rope_scaling": {"factor": 2.0}}, "needed: a rope_type beside the parameters"),
    ],
)
def test_values_of_another_type(change, message):
    with pytest.raises(ConfigError) as error:
        ArchitectureConfig(**{**BASE, **change})
    assert message in str(error.value)


def test_every_layout_has_its_layer():
    assert tuple(LAYOUTS) == LAYER_LAYOUTS
