"""Layers with a state read prompts of several chunks as transformers does, padded or not."""

from __future__ import annotations

import numpy as np
import pytest
from tests.parity.decoder import Decoder, padded_logits
from tests.parity.reference import logits_alone, make_model

import mobius

LONG = {"max_position_embeddings": 512}
MODELS = {"mamba": {}, "mamba2": {}, "qwen3_next": LONG, "recurrent_gemma": LONG}
LENGTHS = (204, 131)
DECODE_STEPS = 4
BOUND = 1e-4  # of a difference, relative to the largest logit


@pytest.mark.parametrize("ep", ["default", "onnx-standard"])
@pytest.mark.parametrize("model_type", MODELS)
def test_long_prompts(tmp_path, model_type, ep):
    model = make_model(model_type, **MODELS[model_type])
    model.save_pretrained(tmp_path / "checkpoint")
    package = mobius.build(tmp_path / "checkpoint", execution_provider=ep, dtype="f32")
    package.save(tmp_path / "out")
    decoder = Decoder(tmp_path / "out" / "model.onnx")
    random = np.random.default_rng(3)
    rows = [random.integers(10, model.config.vocab_size, length) for length in LENGTHS]
    expected = [logits_alone(model, row, DECODE_STEPS) for row in rows]
    for side in ("left", "right"):
        ours = padded_logits(decoder, rows, DECODE_STEPS, side)
        for got, logits in zip(ours, expected, strict=True):
            assert np.abs(got - logits).max() / np.abs(logits).max() < BOUND
