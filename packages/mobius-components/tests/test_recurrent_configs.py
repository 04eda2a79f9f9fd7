"""Configurations of layers with a state: every error names class, field, value and need."""

from typing import Any

import pytest

from mobius_components import (
    ArchitectureConfig,
    ConfigError,
    GatedDeltaConfig,
    Mamba2Config,
    MambaConfig,
    MultiplierConfig,
    RgLruConfig,
    SharedBlockConfig,
    ShortConvConfig,
)

MODEL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GOOD: dict[type, dict[str, Any]] = {
    ShortConvConfig: {"taps": 3},
    GatedDeltaConfig: {
        "key_heads": 2,
        "value_heads": 4,
        "key_size": 16,
        "value_size": 8,
        "conv_taps": 4,
    },
    RgLruConfig: {"width": 64, "blocks": 4, "conv_taps": 4},
    MambaConfig: {"channels": 128, "state_size": 16, "time_step_rank": 4, "conv_taps": 4},
    Mamba2Config: {"heads": 8, "head_size": 16, "groups": 2, "state_size": 16, "conv_taps": 4},
    SharedBlockConfig: {"blocks": 2, "adapter_rank": 8},
    MultiplierConfig: {},
}


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (ShortConvConfig, {"taps": 0}, "taps is 0; needed: an integer of at least 2"),
        (ShortConvConfig, {"bias": 1}, "bias is 1; needed: True or False"),
        (GatedDeltaConfig, {"key_heads": 3}, "key_heads is 3; needed: a divisor of value_heads"),
        (GatedDeltaConfig, {"activation": "swoosh"}, "activation is 'swoosh'; needed: one of"),
        (RgLruConfig, {"blocks": 5}, "blocks is 5; needed: a divisor of width, which is 64"),
        (RgLruConfig, {"conv_taps": True}, "conv_taps is True; needed: an integer of at least 2"),
        (MambaConfig, {"state_size": 1.5}, "state_size is 1.5; needed: an integer"),
        (MambaConfig, {"parameter_norm": "layer"}, "parameter_norm is 'layer'; needed: one of"),
        (MambaConfig, {"parameter_norm_eps": 0.0}, "parameter_norm_eps is 0.0; needed: a number"),
        (Mamba2Config, {"groups": 3}, "groups is 3; needed: a divisor of heads, which is 8"),
        (
            Mamba2Config,
            {"time_step_min": 2.0, "time_step_max": 1.0},
            "time_step_min is 2.0; needed: 0 or more, below 1.0",
        ),
        (Mamba2Config, {"gated_norm": "both"}, "gated_norm is 'both'; needed: one of"),
        (Mamba2Config, {"gated_norm_eps": -1.0}, "gated_norm_eps is -1.0; needed: a number above"),
        (Mamba2Config, {"section_multipliers": (1.0,)}, "section_multipliers is (1.0,); needed: 5"),
        (SharedBlockConfig, {"adapter_rank": 0}, "adapter_rank is 0; needed: an integer"),
        (MultiplierConfig, {"mlp_gate": 0.0}, "mlp_gate is 0.0; needed: finite numbers"),
        (MultiplierConfig, {"stream": ((1.0, 0.0),)}, "stream is ((1.0, 0.0),); needed: finite"),
    ],
)
def test_refused(kind: type, fields: dict[str, Any], message: str) -> None:
    kind(**GOOD[kind])
    with pytest.raises(ConfigError) as error:
        kind(**(GOOD[kind] | fields))
    assert str(error.value).startswith(f"{kind.__name__}.{message}")


@pytest.mark.parametrize(
    ("layer_type", "field"),
    [
        ("short_conv", "short_conv"),
        ("gated_delta", "gated_delta"),
        ("mamba", "mamba"),
        ("mamba2", "mamba2"),
        ("rg_lru", "rg_lru"),
        ("attention_beside_mamba2", "mamba2"),
        ("shared_block_before_mamba2", "mamba2"),
    ],
)
def test_a_layer_type_needs_its_field(layer_type: str, field: str) -> None:
    with pytest.raises(ConfigError, match=rf"ArchitectureConfig\.{field} is None; needed: "):
        ArchitectureConfig(**MODEL, layer_types=(layer_type, "full_attention"))


def test_shared_blocks_and_factors_fit_the_layers() -> None:
    kinds = ("shared_block_before_mamba2",) * 2
    mamba2 = Mamba2Config(**GOOD[Mamba2Config])
    with pytest.raises(ConfigError, match=r"shared_blocks is None; needed: a value, because"):
        ArchitectureConfig(**MODEL, layer_types=kinds, mamba2=mamba2)
    factors = MultiplierConfig(stream=((1.0, 2.0),) * 3)
    with pytest.raises(ConfigError, match=r"MultiplierConfig\.stream is .*; needed: 2 entries"):
        ArchitectureConfig(**MODEL, multipliers=factors)
