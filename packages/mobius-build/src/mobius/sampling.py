"""`Sampler`: logits in, the next token out; the most likely one, or one at random."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from mobius_eps import MobiusError

__all__ = ["Sampler", "SamplingError"]


class SamplingError(MobiusError, ValueError):
    """A setting of the sampler is out of range."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampler:
    """How the next token is chosen, in the order of transformers: temperature, top-k, top-p.

    Attributes:
        sample: Draw at random; otherwise the most likely token is taken, the first of equals.
        temperature: Divides the logits; below 1 makes likely tokens likelier.
        top_k: Draw from the `k` most likely tokens; 0 for all.
        top_p: Draw from the fewest likely tokens that have this much of the probability together.
        seed: Of the generator; `None` for a new one each time.

    Raises:
        SamplingError: naming the setting that is out of range.
    """

    sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check each setting."""
        for name, right, needed in (
            ("temperature", 0 < self.temperature < math.inf, "a number above 0"),
            ("top_k", self.top_k >= 0, "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "a number above 0 and at most 1"),
        ):
            if not right:
                raise SamplingError(f"{name} is {getattr(self, name)!r}; needed: {needed}.")

    def generator(self) -> np.random.Generator:
        """Return the source of randomness for one text."""
        return np.random.default_rng(self.seed)

    def choose(self, logits: npt.NDArray[np.floating], generator: np.random.Generator) -> int:
        """Return the next token for `logits` `[vocab]`."""
        if not self.sample:
            return int(logits.argmax())
        # Most likely first; stable, so that equal logits have the same order everywhere.
        order = np.argsort(-logits, kind="stable")[: self.top_k or None]
        scaled = logits[order].astype(np.float64) / self.temperature
        probabilities = np.exp(scaled - scaled[0])
        probabilities /= probabilities.sum()
        # A token stays if those before it do not have enough yet; the first always does.
        before = probabilities.cumsum() - probabilities
        kept = probabilities[before < self.top_p]
        return int(order[generator.choice(len(kept), p=kept / kept.sum())])
