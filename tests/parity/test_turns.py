"""Rows of a batch that go on at different times: what a row says depends on its own tokens alone.

Turn by turn the rows have different numbers of tokens, one of them none, and padding changes sides.
Case C126.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import transformers
from tests.parity.decoder import Decoder
from tests.parity.reference import logits_alone, make_model

import mobius

TURNS = (  # side of the padding, tokens of each row
    ("right", (5, 2, 4)),
    ("left", (3, 0, 1)),
    ("right", (1, 4, 1)),
    ("left", (1, 1, 1)),
)
MODELS = {
    "lfm2": {},
    "mamba": {},
    "qwen3_5_text": {},
    # transformers limits time steps in prompts alone; here every token has them.
    "mamba2": {"time_step_limit": (0.1, 0.4)},
    "falcon_h1": {},
    "recurrent_gemma": {},
    "zamba2": {},
}


def take_turns(decoder: Decoder, tokens: list[np.ndarray]) -> list[np.ndarray]:
    """Return each row's logits at its tokens."""
    found: list[list[np.ndarray]] = [[] for _ in tokens]
    taken = [0] * len(tokens)
    decoder.start(len(tokens))
    for side, counts in TURNS:
        width = max(counts)
        fed = np.full((len(tokens), width), 7)
        mask = np.zeros_like(fed)
        for row, count in enumerate(counts):
            place = slice(width - count, width) if side == "left" else slice(0, count)
            fed[row, place] = tokens[row][taken[row] : taken[row] + count]
            mask[row, place] = 1
            taken[row] += count
        logits = decoder.step(fed, mask)
        for row in range(len(tokens)):
            found[row].append(logits[row, mask[row] == 1])
    return [np.concatenate(each) for each in found]


def load(tmp_path: Path, model: transformers.PreTrainedModel, ep: str) -> Decoder:
    model.save_pretrained(tmp_path / "checkpoint")
    package = mobius.build(tmp_path / "checkpoint", execution_provider=ep, dtype="f32")
    package.save(tmp_path / "out")
    return Decoder(tmp_path / "out" / "model.onnx")


@pytest.mark.parametrize("ep", ["default", "onnx-standard"])
@pytest.mark.parametrize("model_type", MODELS)
def test_turns(tmp_path, model_type, ep):
    model = make_model(model_type, **MODELS[model_type])
    decoder = load(tmp_path, model, ep)
    random = np.random.default_rng(11)
    lengths = np.sum([counts for _, counts in TURNS], axis=0)
    tokens = [random.integers(10, model.config.vocab_size, length) for length in lengths]
    ours = take_turns(decoder, tokens)
    for row, got in zip(tokens, ours, strict=True):
        expected = logits_alone(model, row)
        assert np.abs(got - expected).max() / np.abs(expected).max() < 3e-5


@pytest.mark.parametrize("ep", ["default", "onnx-standard"])
@pytest.mark.parametrize("model_type", ["mamba", "mamba2", "qwen3_5_text"])
def test_c126_one_token_and_then_many_in_one_session(tmp_path, model_type, ep):
    """A loop's buffers are not as small as its first call needed."""
    model = make_model(model_type)
    decoder = load(tmp_path, model, ep)
    tokens = np.random.default_rng(2).integers(10, model.config.vocab_size, 60)
    expected = logits_alone(model, tokens)
    for length in (1, len(tokens), 1):
        decoder.start(1)
        logits = decoder.step(tokens[None, :length], np.ones((1, length), np.int64))[0]
        difference = np.abs(logits - expected[:length]).max()
        assert difference / np.abs(expected).max() < 3e-5
