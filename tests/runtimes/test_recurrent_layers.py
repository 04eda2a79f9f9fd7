"""onnx-standard packages of layers with a state give the right logits where loops run.

Two layers of a kind after one another, prompts longer than a chunk, then one token at a time.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.parity.decoder import padded_logits
from tests.parity.reference import logits_alone
from tests.runtimes import test_openvino, test_reference_evaluator
from tests.runtimes.decoder import RuntimeDecoder
from tests.runtimes.reference import F32_TOLERANCE

RUNTIMES = {"openvino": test_openvino.load, "reference": test_reference_evaluator.load}
# The reference evaluator scatters into at most 64 elements a row.
LENGTHS = (52, 39)
DECODE_STEPS = 2


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("family", ["mamba", "mamba2", "qwen3_5_text", "recurrent_gemma"])
def test_logits(checkpoint, model_for, family, runtime):
    path = model_for(family, "f32")
    model, _ = checkpoint(family)
    random = np.random.default_rng(3)
    rows = [random.integers(10, model.config.vocab_size, size=length) for length in LENGTHS]
    decoder = RuntimeDecoder(path, RUNTIMES[runtime](path))
    for side in ("right", "left"):
        ours = padded_logits(decoder, rows, DECODE_STEPS, side)
        for got, row in zip(ours, rows, strict=True):
            expected = logits_alone(model, row)
            assert np.abs(got - expected).max() < F32_TOLERANCE
