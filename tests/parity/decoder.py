"""Runs a built decoder on ONNX Runtime as a user would: padded batches, prefill, decode steps."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class Decoder:
    """A session with its key/value cache and padding mask."""

    def __init__(self, path: Path) -> None:
        """Load the model at `path` on the CPU."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = 2
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.outputs = [each.name for each in self.session.get_outputs()]
        self.inputs = {each.name for each in self.session.get_inputs()}
        self.cache: dict[str, npt.NDArray[np.generic]] = {}
        self.mask = np.zeros((0, 0), np.int64)

    def start(self, batch: int) -> None:
        """Forget everything and expect rows of `batch` sequences."""
        self.mask = np.zeros((batch, 0), np.int64)
        sizes = {"batch": batch, "past_sequence_length": 0}
        self.cache = {
            each.name: np.zeros([sizes.get(size, size) for size in each.shape], DTYPES[each.type])
            for each in self.session.get_inputs()
            if each.name.startswith("past_key_values.")
        }

    def step(
        self, tokens: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        """Feed `tokens` `[B, S]`, real where `mask` is 1; return logits `[B, S, vocab]`."""
        self.mask = np.concatenate([self.mask, mask], axis=1)
        positions = np.clip(np.cumsum(self.mask, axis=1) - 1, 0, None)[:, -tokens.shape[1] :]
        feed = {
            "input_ids": tokens,
            "attention_mask": self.mask,
            "position_ids": positions,
            **self.cache,
        }
        values = self.session.run(self.outputs, feed)
        named = dict(zip(self.outputs, values, strict=True))
        for name in self.cache:
            self.cache[name] = named[name.replace("past_key_values", "present")]
        logits: npt.NDArray[np.float32] = named["logits"]
        return logits


def padded_logits(
    decoder: Decoder,
    rows: list[npt.NDArray[np.int64]],
    decode_steps: int,
    side: str,
    chunks: tuple[int, ...] = (),
) -> list[npt.NDArray[np.float32]]:
    """Return each row's logits at its real tokens: padded prefill, then `decode_steps` tokens.

    Args:
        decoder: Where to run.
        rows: Tokens of each row; the last `decode_steps` are fed one at a time.
        decode_steps: Number of steps after the prefill.
        side: `"left"` or `"right"` padding of the prefill.
        chunks: Lengths of the prefill's chunks; empty for one.
    """
    prompts = [row[: len(row) - decode_steps] for row in rows]
    width = max(map(len, prompts))
    tokens = np.full((len(rows), width), 7, np.int64)  # padding that would show if it were seen
    mask = np.zeros_like(tokens)
    for index, prompt in enumerate(prompts):
        place = slice(width - len(prompt), width) if side == "left" else slice(0, len(prompt))
        tokens[index, place] = prompt
        mask[index, place] = 1
    decoder.start(len(rows))
    bounds = np.cumsum([0, *(chunks or (width,))])
    parts = [decoder.step(tokens[:, a:b], mask[:, a:b]) for a, b in itertools.pairwise(bounds)]
    prefill = np.concatenate(parts, axis=1)
    results = [[prefill[index][mask[index] == 1]] for index in range(len(rows))]
    for offset in range(decode_steps, 0, -1):
        column = np.array([[row[len(row) - offset]] for row in rows])
        logits = decoder.step(column, np.ones_like(column))
        for index, result in enumerate(results):
            result.append(logits[index])
    return [np.concatenate(result) for result in results]
