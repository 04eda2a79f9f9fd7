"""The whole matrix: every family x EP x dtype x way to run, against transformers in float32.

The nox session `parity` runs it and can write what it measured (`--parity-results`), from which the
table of verified models is made. Differences are relative to the largest reference logit. Weights
are rounded to float16 for both sides, so that a difference is arithmetic alone.
"""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from tests.parity.decoder import Decoder, padded_logits
from tests.parity.reference import CONFIGS, VARIANTS, logits_alone, make_model

import mobius

pytestmark = pytest.mark.slow

# What the graphs of these consist of has kernels on ONNX Runtime's CPU provider.
EPS = ("default", "cpu", "webgpu", "mlx", "onnx-standard")
BOUNDS = {"f32": 1e-4, "f16": 3e-2}
# Some tiny models blow rounding up: transformers' own float16 is farther off than the bound, and
# ours, whose kernels round elsewhere, may be this many times as far.
OF_OWN_FLOAT16 = 3.0
# With other weights a router's choice is nearer to a tie than float16 can tell apart, or, for
# ministral3, rounding adds up to a little more than the bound.
FLOAT16_SEEDS = {
    "gemma4_text-experts": 3,
    "granitemoe_swa": 1,
    "ministral3": 1,
    "mistral4": 1,
    "phimoe": 1,
}
DECODE_STEPS = 4


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One way to run a decoder; every row is longer than any window of the tiny models.

    Attributes:
        lengths: Tokens of each row, the decoded ones included.
        side: Where rows are padded.
        chunks: Lengths of the parts that the prompt is fed in; empty for one.
    """

    lengths: tuple[int, ...]
    side: str = "right"
    chunks: tuple[int, ...] = ()


SCENARIOS = {
    "one row": Scenario((24,)),
    "two chunks": Scenario((24,), chunks=(12, 8)),
    "right padding": Scenario((18, 13)),
    "left padding": Scenario((18, 13), side="left"),
}


Logits = npt.NDArray[np.float32]


def rows(scenario: Scenario, vocab_size: int) -> list[npt.NDArray[np.int64]]:
    random = np.random.default_rng(3)
    return [random.integers(10, vocab_size, size=length) for length in scenario.lengths]


def build(folder: Path, out: Path, ep: str, dtype: str, side: str) -> Decoder:
    with warnings.catch_warnings():
        # That an operator has no ALiBi, or no left padding, is no matter of numbers.
        warnings.simplefilter("ignore", UserWarning)
        package = mobius.build(folder, execution_provider=ep, dtype=dtype, padding_side=side)
    package.save(out)
    return Decoder(out / "model.onnx")


@torch.no_grad()
def round_to_float16(model: transformers.PreTrainedModel) -> None:
    for parameter in model.parameters():
        parameter.copy_(parameter.half())


def references(model: transformers.PreTrainedModel) -> dict[str, list[Logits]]:
    """Return each row's logits, by the name of the scenario."""
    size = model.config.get_text_config().vocab_size
    return {
        name: [
            logits_alone(model, row, DECODE_STEPS, scenario.chunks) for row in rows(scenario, size)
        ]
        for name, scenario in SCENARIOS.items()
    }


def largest_difference(ours: list[Logits], reference: list[Logits]) -> float:
    return max(
        float(np.abs(got - expected).max()) for got, expected in zip(ours, reference, strict=True)
    )


def largest(reference: list[Logits]) -> float:
    return max(float(np.abs(each).max()) for each in reference)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("model_type", [*CONFIGS, *VARIANTS])
def test_family(model_type, dtype, tmp_path, parity_results):
    seed = FLOAT16_SEEDS.get(model_type, 0) if dtype == "f16" else 0
    model = make_model(model_type, seed)
    round_to_float16(model)
    checkpoint = tmp_path / "checkpoint"
    model.save_pretrained(checkpoint)
    vocab_size = model.config.get_text_config().vocab_size
    expected = references(model)
    own = references(model.half())
    wrong = []
    for ep in EPS:
        decoders: dict[str, Decoder] = {}
        for name, scenario in SCENARIOS.items():
            side = scenario.side
            if side not in decoders:
                out = tmp_path / f"{ep}-{dtype}-{side}"
                decoders[side] = build(checkpoint, out, ep, dtype, side)
            prompt = rows(scenario, vocab_size)
            ours = padded_logits(decoders[side], prompt, DECODE_STEPS, side, scenario.chunks)
            reference = expected[name]
            absolute = largest_difference(ours, reference)
            relative = absolute / largest(reference)
            parity_results.record(model_type, ep, dtype, name, absolute, relative)
            bound = BOUNDS[dtype]
            if dtype == "f16":
                float16 = largest_difference(own[name], reference)
                bound = max(bound, OF_OWN_FLOAT16 * float16 / largest(reference))
            if not relative <= bound:
                wrong.append((ep, dtype, name, relative, bound))
    assert not wrong
