"""llama.cpp itself computes, from the files of `test_gguf`, what transformers computes.

So what is written there is what llama.cpp's converter writes, as far as llama.cpp can tell. The
package `xllamacpp` brings it along; without it these tests are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.parity.gguf_writer import write_gguf
from tests.parity.reference import logits_alone, make_model
from tests.parity.test_gguf import FAMILIES, FIELDS, LAYOUTS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("xllamacpp") is None, reason="needs the package xllamacpp"
    ),
]

SCRIPT = Path(__file__).with_name("llama_cpp.py")
LENGTH = 20
TOLERANCE = 1e-4  # of the logarithm of a probability
# llama.cpp looks GELU up in a table of float16, and has the approximate form for the exact one.
GELU = 2e-2
WITH_GELU = frozenset(
    {
        *("bloom", "falcon", "falcon-40b", "falcon-one-norm", "gemma", "gemma2", "gemma3_text"),
        *("gemma4_text", "gemma4_text-experts", "gpt2", "gpt_bigcode", "gpt_neox", "mpt", "phi"),
        "starcoder2",
    }
)
# What llama.cpp has fixed, and files cannot say.
ALONE: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"topk_method": "greedy", "n_group": 1, "topk_group": 1},
    "exaone4": {"sliding_window": None, "layer_types": ["full_attention"] * 3},
    "granitemoehybrid-dense": {"shared_intermediate_size": 96},
    "phi3": {"sliding_window": None},
}
# What it does otherwise than the model: not read by number of layers or fixed widths, or not there.
OTHERWISE = {
    "deepseek_v2-lite": "is known by its 27 layers",
    "gemma3n_text": "has keys that nobody reads, which transformers does not save",
    "phimoe": "lacks SparseMixer",
}


@pytest.mark.parametrize("model_type", [each for each in FAMILIES if each not in OTHERWISE])
def test_llama_cpp_computes_the_same(tmp_path: Path, model_type: str) -> None:
    fields = {**FIELDS.get(model_type, {}), **ALONE.get(model_type, {})}
    model = make_model(LAYOUTS.get(model_type, model_type), **fields)
    write_gguf(tmp_path / "model.gguf", model, tokens=True)
    size = model.config.vocab_size
    row = np.random.default_rng(1).integers(0, size, LENGTH)
    ours = _log_probabilities(logits_alone(model, row)[-1])
    theirs = _run(tmp_path / "model.gguf", size, row)
    tolerance = GELU if model_type in WITH_GELU else TOLERANCE
    assert np.abs(theirs - ours).max() <= tolerance


def _run(path: Path, size: int, row: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    arguments = [sys.executable, str(SCRIPT), str(path), str(size), *map(str, row)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    line = next((each for each in done.stdout.splitlines() if each.startswith("logprobs: ")), None)
    assert line is not None, done.stdout + done.stderr
    return np.array(json.loads(line.removeprefix("logprobs: ")))


def _log_probabilities(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    exact = logits.astype(np.float64) - logits.max()
    result: npt.NDArray[np.float64] = exact - np.log(np.exp(exact).sum())
    return result
