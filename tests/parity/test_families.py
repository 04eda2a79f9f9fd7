"""Logits of every family equal transformers', on every EP whose kernels run here.

CI runs every family once, and some in full; the nox session `parity` runs all.
Batch 2, padded, prefill and four decode steps, longer than any window; each row is compared with
the same row run alone. Cases C001, C002, C011, C013, C021, C022, C026, C033, C063, C065, C071,
C081, C129.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from tests.parity.decoder import Decoder, padded_logits
from tests.parity.reference import CONFIGS, VARIANTS, logits_alone, make_model

import mobius

MODELS = [*CONFIGS, *VARIANTS]
IN_FULL = {"llama", "qwen2", "qwen3", "mistral"}
ALIBI = {"bloom", "falcon-alibi", "mpt"}
EPS = ["default", "cpu", "onnx-standard"]
ROWS = (14, 11)  # prompt lengths of 10 and 7, then 4 decode steps
DECODE_STEPS = 4
BOUND = 3e-5  # of a difference, relative to the largest logit of the row


def cells(*eps: str, always: str = "") -> list:
    """Return (model type, EP) pairs; CI runs all of some families, and `always` of the others."""
    return [
        pytest.param(
            *(model_type, ep),
            id=f"{model_type}-{ep}",
            marks=[] if model_type in IN_FULL or ep == always else [pytest.mark.slow],
        )
        for model_type in MODELS
        for ep in eps
    ]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Each family's model and saved checkpoint, made once."""
    made = {}

    def get(model_type):
        if model_type not in made:
            folder = tmp_path_factory.mktemp(model_type)
            model = make_model(model_type)
            model.save_pretrained(folder)
            made[model_type] = (model, folder)
        return made[model_type]

    return get


def rows(vocab_size: int) -> list:
    random = np.random.default_rng(3)
    return [random.integers(10, vocab_size, size=length) for length in ROWS]


def build(model_type: str, folder: Path, out: Path, ep: str, side: str = "right") -> Decoder:
    """Build and load; GroupQueryAttention has no ALiBi, and a build that would fuse says so."""
    refused = ep == "cpu" and model_type in ALIBI
    with pytest.warns(UserWarning, match="Where") if refused else contextlib.nullcontext():
        package = mobius.build(folder, execution_provider=ep, dtype="f32", padding_side=side)
    package.save(out)
    return Decoder(out / "model.onnx")


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(("model_type", "ep"), cells(*EPS, always="cpu"))
def test_right_padding(checkpoints, tmp_path, model_type, ep):
    model, folder = checkpoints(model_type)
    decoder = build(model_type, folder, tmp_path / "out", ep)
    tokens = rows(model.config.vocab_size)
    ours = padded_logits(decoder, tokens, DECODE_STEPS, "right")
    for row, got in zip(tokens, ours, strict=True):
        expected = logits_alone(model, row, DECODE_STEPS)
        assert 1 < np.abs(expected).max() < 50
        assert difference(got, expected) < BOUND


@pytest.mark.parametrize(("model_type", "ep"), cells("cpu"))
def test_left_padding(checkpoints, tmp_path, model_type, ep):
    model, folder = checkpoints(model_type)
    decoder = build(model_type, folder, tmp_path / "out", ep, "left")
    tokens = rows(model.config.vocab_size)
    ours = padded_logits(decoder, tokens, DECODE_STEPS, "left")
    for row, got in zip(tokens, ours, strict=True):
        assert difference(got, logits_alone(model, row, DECODE_STEPS)) < BOUND


@pytest.mark.parametrize(("model_type", "ep"), cells("default", "onnx-standard"))
def test_left_padding_and_chunks(checkpoints, tmp_path, model_type, ep):
    model, folder = checkpoints(model_type)
    decoder = build(model_type, folder, tmp_path / "out", ep)
    tokens = rows(model.config.vocab_size)
    for chunks in ((), (4, 6)):
        ours = padded_logits(decoder, tokens, DECODE_STEPS, "left", chunks)
        for row, got in zip(tokens, ours, strict=True):
            assert difference(got, logits_alone(model, row, DECODE_STEPS)) < BOUND


@pytest.mark.parametrize(("model_type", "ep"), cells("cpu"))
def test_prefill_in_chunks(checkpoints, tmp_path, model_type, ep):
    model, folder = checkpoints(model_type)
    decoder = build(model_type, folder, tmp_path / "out", ep)
    row = rows(model.config.vocab_size)[:1]
    (ours,) = padded_logits(decoder, row, DECODE_STEPS, "right", (6, 4))
    assert difference(ours, logits_alone(model, row[0], DECODE_STEPS)) < BOUND
