"""`generate`: a prompt in, the tokens that follow it out, one by one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

from mobius.ort import Array
from mobius.sampling import Sampler
from mobius.text_decoder import RunError, TextDecoder

__all__ = ["Speed", "generate"]


@dataclasses.dataclass
class Speed:
    """How fast a text was made.

    Attributes:
        prefill_tokens: Tokens of the prompt, read in one call.
        prefill_seconds: How long that took.
        decode_tokens: Tokens read one at a time.
        decode_seconds: How long those took.
    """

    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0

    @property
    def prefill(self) -> float:
        """Tokens of the prompt in a second."""
        return self.prefill_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode(self) -> float:
        """Tokens one at a time in a second."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold; the speed of nothing is `None`."""
        return {
            "prefill": {
                "tokens": self.prefill_tokens,
                "seconds": round(self.prefill_seconds, 6),
                "tokens_per_second": round(self.prefill, 2) or None,
            },
            "decode": {
                "tokens": self.decode_tokens,
                "seconds": round(self.decode_seconds, 6),
                "tokens_per_second": round(self.decode, 2) or None,
            },
        }


def generate(
    decoder: TextDecoder,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    sampler: Sampler | None = None,
    speed: Speed | None = None,
) -> Iterator[int]:
    """Yield the tokens after `prompt`, until one ends the text, which is not yielded.

    The text also ends where the model reads no further.

    Args:
        decoder: Where to run; what it has read before is forgotten.
        prompt: Tokens.
        max_new_tokens: Most tokens to make.
        sampler: How a token is chosen; the most likely one unless told otherwise.
        speed: Is told how long each call took.

    Raises:
        RunError: if the prompt is empty, or longer than the model reads.
        OrtError: with what ONNX Runtime says.
    """
    limit = decoder.generation.context_length
    if not prompt or len(prompt) > limit:
        raise RunError(f"The prompt has {len(prompt)} tokens; the model reads 1 to {limit}.")
    sampler = sampler or Sampler()
    speed = speed or Speed()
    generator = sampler.generator()
    text = list(prompt)
    end = min(limit, len(prompt) + max_new_tokens)
    if end == len(prompt):
        return
    decoder.start(end)
    waiting = text[:]
    while True:
        if _passes(decoder, len(text)):
            decoder.start(end)
            waiting = text[:]
        token = sampler.choose(_timed_read(decoder, waiting, speed), generator)
        if token in decoder.generation.eos_token_ids:
            return
        yield token
        text.append(token)
        waiting = [token]
        if len(text) == end:
            return


def _passes(decoder: TextDecoder, length: int) -> bool:
    """Return whether the cache is of a shorter text than the long rotary table is for."""
    switch = decoder.generation.recompute_length
    return switch is not None and 0 < decoder.length <= switch < length


def _timed_read(decoder: TextDecoder, tokens: Sequence[int], speed: Speed) -> Array:
    is_prefill = decoder.length == 0
    start = time.perf_counter()
    logits = decoder.read(tokens)
    seconds = time.perf_counter() - start
    if is_prefill:
        speed.prefill_tokens += len(tokens)
        speed.prefill_seconds += seconds
    else:
        speed.decode_tokens += len(tokens)
        speed.decode_seconds += seconds
    return logits
