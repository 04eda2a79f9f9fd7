"""Expected logits of a family in a dtype, how far off half precision may be, and the comparison."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import transformers
from tests.parity.decoder import padded_logits
from tests.parity.reference import logits_alone
from tests.runtimes.decoder import Run, RuntimeDecoder

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
PROMPTS = (8, 5)
DECODE_STEPS = 2
TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
F32_TOLERANCE = 1e-4
# Half precision: root mean square of the error, over that of transformers' own forward pass in the
# same dtype, eager attention. Measured: 0.2 (OpenVINO in float16, which computes in float32) to 1.3
# (the reference evaluator, which rounds after every operator).
HALF_TOLERANCE = 2.0


@dataclasses.dataclass(frozen=True)
class Reference:
    """What each row gives alone, in float32 from weights that the dtype can hold.

    Attributes:
        tokens: Tokens of each row, those of the decode steps last.
        logits: Logits `[S, vocab]` of each row.
        error: For half precision, the root mean square of what transformers is off in the dtype.
    """

    tokens: list[npt.NDArray[np.int64]]
    logits: list[npt.NDArray[np.float32]]
    error: float


def make_reference(model: transformers.PreTrainedModel, dtype: str) -> Reference:
    """Return what a float32 model gives once its weights are rounded to `dtype`."""
    random = np.random.default_rng(3)
    lengths = [prompt + DECODE_STEPS for prompt in PROMPTS]
    tokens = [random.integers(10, model.config.vocab_size, size=length) for length in lengths]
    half = copy.deepcopy(model).to(TORCH_DTYPES[dtype])
    logits = [logits_alone(copy.deepcopy(half).float(), row) for row in tokens]
    error = 0.0
    if dtype != "f32":
        error = _rms(
            _logits_in_half(half, row) - each for row, each in zip(tokens, logits, strict=True)
        )
    return Reference(tokens, logits, error)


def check(path: Path, run: Run, reference: Reference, sides: Iterable[str]) -> float:
    """Assert that a runtime computes right, padded on each of the sides, with decode steps.

    Args:
        path: The model.
        run: Runs it.
        reference: What is right.
        sides: `"left"` and `"right"`, or one of them.

    Returns:
        The largest difference of a logit.
    """
    decoder = RuntimeDecoder(path, run)
    largest = 0.0
    for side in sides:
        ours = padded_logits(decoder, reference.tokens, DECODE_STEPS, side)
        differences = [got - each for got, each in zip(ours, reference.logits, strict=True)]
        largest = max(largest, *(float(np.abs(each).max()) for each in differences))
        if reference.error:
            assert _rms(differences) < HALF_TOLERANCE * reference.error, side
        else:
            assert largest < F32_TOLERANCE, side
    return largest


@torch.no_grad()
def _logits_in_half(
    model: transformers.PreTrainedModel, tokens: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    result: npt.NDArray[np.float32] = (
        model(torch.from_numpy(tokens)[None]).logits[0].float().numpy()
    )
    return result


def _rms(differences: Iterable[npt.NDArray[np.float32]]) -> float:
    return float(np.sqrt(np.mean(np.concatenate([each.ravel() for each in differences]) ** 2)))
