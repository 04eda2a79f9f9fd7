"""`Sampler`: the likeliest token, and how often the others are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mobius.sampling import Sampler, SamplingError

LOGITS = np.log(np.array([0.1, 0.4, 0.15, 0.05, 0.3], np.float32))


def frequencies(**settings: Any) -> list[float]:
    sampler = Sampler(sample=True, seed=0, **settings)
    generator = sampler.generator()
    drawn = [sampler.choose(LOGITS, generator) for _ in range(4000)]
    return [round(drawn.count(token) / len(drawn), 3) for token in range(5)]


def test_the_likeliest_and_the_first_of_equals() -> None:
    sampler = Sampler()
    generator = sampler.generator()
    assert sampler.choose(LOGITS, generator) == 1
    assert sampler.choose(np.zeros(5, np.float32), generator) == 0


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.1, 0.4, 0.15, 0.05, 0.3]),
        ({"top_k": 0}, [0.1, 0.4, 0.15, 0.05, 0.3]),
        ({"top_k": 1}, [0, 1, 0, 0, 0]),
        ({"top_k": 2}, [0, 4 / 7, 0, 0, 3 / 7]),
        ({"top_p": 0.7}, [0, 4 / 7, 0, 0, 3 / 7]),  # together they have exactly that much
        ({"top_p": 0.71}, [0, 40 / 85, 15 / 85, 0, 30 / 85]),
        ({"top_p": 1e-9}, [0, 1, 0, 0, 0]),
        # Temperature comes first: of the squares, the likeliest two have 0.25 / 0.285.
        ({"temperature": 0.5, "top_p": 0.85}, [0, 16 / 25, 0, 0, 9 / 25]),
    ],
)
def test_frequencies(settings: dict[str, Any], expected: list[float]) -> None:
    found = frequencies(**settings)
    # Three standard deviations of a share of 4,000 draws are below 0.025.
    assert found == pytest.approx(expected, abs=0.025)
    assert [share == 0 for share in found] == [share == 0 for share in expected]


def test_a_seed_decides() -> None:
    sampler = Sampler(sample=True, seed=7)
    first, again = (
        [sampler.choose(LOGITS, generator) for _ in range(20)]
        for generator in (sampler.generator(), sampler.generator())
    )
    assert first == again
    other = Sampler(sample=True, seed=8)
    generator = other.generator()
    assert [other.choose(LOGITS, generator) for _ in range(20)] != first


def test_large_logits_do_not_overflow() -> None:
    sampler = Sampler(sample=True, seed=0, temperature=1e-3)
    assert sampler.choose(np.array([-9e4, 9e4, 0], np.float32), sampler.generator()) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, r"temperature is 0\.0; needed: a number above 0\."),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1; needed: 0 or more"),
        ({"top_p": 0.0}, r"top_p is 0\.0; needed: a number above 0 and at most 1"),
        ({"top_p": 1.5}, r"top_p is 1\.5"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SamplingError, match=message):
        Sampler(**settings)
