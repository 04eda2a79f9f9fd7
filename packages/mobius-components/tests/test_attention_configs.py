"""The parts of a configuration that attention has: what they refuse, and what follows from them."""

import pytest

from mobius_components import ArchitectureConfig, ConfigError
from mobius_components.latent_attention_config import LatentAttentionConfig
from mobius_components.layers.mixers import layer_states
from mobius_components.per_layer_config import AltUpConfig, PerLayerInputConfig
from mobius_components.query_temperature_config import QueryTemperatureConfig

BASE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
FULL, SLIDING = "full_attention", "sliding_attention"
LATENT = {
    "q_lora_rank": None,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 20,
}
TEMPERATURE = QueryTemperatureConfig(beta=0.1, length=8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LatentAttentionConfig(**LATENT | {"kv_lora_rank": 0}), "kv_lora_rank is 0"),
        (lambda: LatentAttentionConfig(**LATENT | {"q_lora_rank": 0}), "q_lora_rank is 0"),
        (
            lambda: LatentAttentionConfig(**LATENT | {"qk_rope_head_dim": 7}),
            "LatentAttentionConfig.qk_rope_head_dim is 7; needed: an even number",
        ),
        (lambda: LatentAttentionConfig(**LATENT, norm_eps=0.0), "norm_eps is 0.0"),
        (lambda: QueryTemperatureConfig(beta=0.0, length=8), "beta is 0.0"),
        (lambda: QueryTemperatureConfig(beta=0.1, length=0), "length is 0"),
        (lambda: QueryTemperatureConfig(beta=0.1, length=1, offset=-1), "offset is -1"),
        (lambda: PerLayerInputConfig(vocab_size=0, hidden_size=4), "vocab_size is 0"),
        (
            lambda: AltUpConfig(num_inputs=2, active=2, correct_scale=True, laurel_rank=1),
            "active is 2; needed: one of the 2 streams",
        ),
    ],
)
def test_parts_refuse(make, message):
    with pytest.raises(ConfigError) as error:
        make()
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers is 4; needed: at least 0 and less"),
        (
            {
                "num_kv_shared_layers": 1,
                "sliding_window": 4,
                "layer_types": (FULL, FULL, FULL, SLIDING),
            },
            "needed: a layer of type sliding_attention before those that share",
        ),
        ({"intermediate_sizes": (96,)}, "needed: 4 entries, one for each layer"),
        ({"activation_sparsity": (0.0, 0.0, 0.0, 1.0)}, "needed: parts in [0, 1)"),
        ({"layer_layout": "gemma3n"}, "altup is None; needed: a value with layer_layout"),
        ({"heads_by_layer_type": {FULL: (3, 16)}}, "a divisor of 4 and a size above zero"),
        ({"attention_chunk_size": 0}, "attention_chunk_size is 0"),
        ({"layer_types": ("chunked_attention",) * 4}, "attention_chunk_size is None"),
        ({"layer_types": ("latent_attention",) * 4}, "latent_attention is None"),
        (
            {
                "query_temperature": TEMPERATURE,
                "qk_norm": "head",
                "qk_norm_after_rotary": True,
            },
            "where a later norm would undo it",
        ),
    ],
)
def test_configurations_refuse(change, message):
    with pytest.raises(ConfigError) as error:
        ArchitectureConfig(**{**BASE, **change})
    assert message in str(error.value)


def test_each_layer_of_a_type_has_its_heads_and_shares_the_last_of_its_kind():
    config = ArchitectureConfig(
        **{**BASE, "num_hidden_layers": 6},
        layer_types=(SLIDING, FULL, SLIDING, FULL, SLIDING, FULL),
        sliding_window=4,
        heads_by_layer_type={FULL: (1, 32)},
        num_kv_shared_layers=2,
        partial_rotary_factor=0.5,
    )
    assert [config.heads(n) for n in range(2)] == [(2, 16), (1, 32)]
    assert [config.kv_source(n) for n in range(6)] == [None] * 4 + [2, 3]
    assert [config.rope(n).dim for n in range(2)] == [8, 16]
    shapes = [[spec.shape[1::2] for spec in layer_states(config, n)] for n in range(6)]
    assert shapes == [[(2, 16)] * 2, [(1, 32)] * 2] * 2 + [[], []]


def test_latent_attention_rotates_its_own_part():
    latent = LatentAttentionConfig(**LATENT)
    config = ArchitectureConfig(
        **BASE,
        head_dim=latent.qk_head_dim,
        latent_attention=latent,
        layer_types=("latent_attention",) * 4,
    )
    assert config.rope(0).dim == 8
    assert [spec.shape for spec in layer_states(config, 0)] == [
        ("batch", 4, "past_sequence_length", 24),
        ("batch", 4, "past_sequence_length", 20),
    ]
