"""Rotary tables against `transformers.modeling_rope_utils` (cases C006, C014, C031, C083)."""

import numpy as np
import pytest

from mobius_components.config import ROPE_TYPES
from mobius_components.rotary_tables import RotaryParameters, cos_sin, frequencies

torch = pytest.importorskip("torch", reason="torch is the reference of this test")
transformers = pytest.importorskip("transformers", reason="transformers is the reference")
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402

FACTORS = [1.0 + 0.1 * i for i in range(16)]
SCALINGS = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 16,
        "beta_slow": 2,
        "truncate": False,
    },
    {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 0.5,
    },
    {
        "rope_type": "longrope",
        "short_factor": FACTORS,
        "long_factor": [2 * f for f in FACTORS],
        "original_max_position_embeddings": 64,
    },
    {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    },
    {"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 2.0},
    {"rope_type": "proportional"},
]


def test_every_type_is_tried():
    unscaled = {"default"}
    assert {scaling["rope_type"] for scaling in SCALINGS} | unscaled == set(ROPE_TYPES)
    assert set(ROPE_INIT_FUNCTIONS) | unscaled == set(ROPE_TYPES)


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: "-".join(map(str, s))[:60])
@pytest.mark.parametrize("long", [False, True])
def test_equals_transformers(scaling, long):
    config = transformers.LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        rope_parameters={"rope_theta": 1e6, **scaling},
    )
    if long and scaling["rope_type"] != "longrope":
        pytest.skip("only longrope has two tables")
    inv_freq, attention_factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](
        config, torch.device("cpu"), seq_len=65 if long else 1
    )
    ours = frequencies(
        RotaryParameters(dim=32, theta=1e6, max_position_embeddings=256, scaling=scaling),
        long=long,
    )
    np.testing.assert_allclose(ours.inv_freq, inv_freq.numpy(), rtol=1e-6)
    assert ours.attention_factor == pytest.approx(attention_factor, rel=1e-7)
    cos, sin = cos_sin(ours, 256)
    angles = torch.arange(256).float()[:, None] * inv_freq[None, :]
    np.testing.assert_allclose(cos, (angles.cos() * attention_factor).numpy(), atol=2e-5)
    np.testing.assert_allclose(cos[:64], (angles.cos() * attention_factor).numpy()[:64], atol=1e-6)
    np.testing.assert_allclose(sin[:64], (angles.sin() * attention_factor).numpy()[:64], atol=1e-6)


def test_theta_is_kept():
    parameters = RotaryParameters(dim=16, theta=1e6, max_position_embeddings=8)
    expected = 1.0 / 1e6 ** (np.arange(0, 16, 2) / 16)
    np.testing.assert_allclose(frequencies(parameters).inv_freq, expected, rtol=1e-6)


def test_unknown_type_raises():
    parameters = RotaryParameters(
        dim=16, theta=1e4, max_position_embeddings=8, scaling={"rope_type": "spiral"}
    )
    with pytest.raises(ValueError, match="rope_type is 'spiral'; known: default, linear"):
        frequencies(parameters)


def test_missing_parameter_is_named():
    parameters = RotaryParameters(
        dim=16, theta=1e4, max_position_embeddings=8, scaling={"rope_type": "linear"}
    )
    with pytest.raises(ValueError, match="has no 'factor'"):
        frequencies(parameters)


def test_longrope_with_wrong_number_of_factors():
    scaling = {
        "rope_type": "longrope",
        "short_factor": [1.0],
        "long_factor": [1.0],
        "original_max_position_embeddings": 4,
    }
    parameters = RotaryParameters(dim=16, theta=1e4, max_position_embeddings=8, scaling=scaling)
    with pytest.raises(ValueError, match="has 1 longrope factors; needed: 8"):
        frequencies(parameters)
