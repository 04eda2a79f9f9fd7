"""Phi 3.5 MoE past the length that it was trained for first: `long_factor`, row by row.

transformers' `PhimoeRotaryEmbedding` calls LongRoPE's function without the length, and so stays
with `short_factor`, though it takes `long_mscale` there. Microsoft's code, which the checkpoint was
trained and is published with, changes both, as Phi 3's does here and there; so do we. A failure of
the second half of the test says that transformers changes both too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.parity.decoder import Decoder, padded_logits
from tests.parity.reference import logits_alone, make_model

import mobius

ORIGINAL_LENGTH = 64
TOLERANCE = 3e-5  # of the largest logit


def test_each_row_has_the_factors_of_its_length(tmp_path: Path) -> None:
    model = make_model("phimoe-longrope")
    model.save_pretrained(tmp_path / "checkpoint")
    out = tmp_path / "out"
    mobius.build(tmp_path / "checkpoint", execution_provider="cpu", dtype="f32").save(out)
    rng = np.random.default_rng(0)
    long, short = (rng.integers(20, 200, length) for length in (ORIGINAL_LENGTH + 9, 40))
    decoder = Decoder(out / "model.onnx")
    of_long, of_short = padded_logits(decoder, [long, short], 0, side="right")

    as_it_is = logits_alone(model, long)
    rotary = model.model.rotary_emb
    compute = rotary.rope_init_fn
    rotary.rope_init_fn = lambda config: compute(config, seq_len=ORIGINAL_LENGTH + 1)
    expected = logits_alone(model, long)
    rotary.rope_init_fn = compute
    assert np.abs(of_long - expected).max() <= TOLERANCE * np.abs(expected).max()
    assert np.abs(of_long - as_it_is).max() > 100 * TOLERANCE * np.abs(expected).max()

    expected = logits_alone(model, short)
    assert np.abs(of_short - expected).max() <= TOLERANCE * np.abs(expected).max()
