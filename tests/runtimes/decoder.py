"""Feeds a saved decoder to any runtime as users do: padding mask, positions, key/value cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Array = npt.NDArray[np.generic]
Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""The model's inputs by name, in their order -> its outputs by name.

Arrays of bfloat16 have the dtype of ml_dtypes.
"""


class RuntimeDecoder:
    """What `tests.parity.decoder.padded_logits` drives, on a runtime given as a function."""

    def __init__(self, path: Path, run: Run) -> None:
        """Read what the model at `path` declares; `run` runs it."""
        self._inputs = tuple(ir.load(path).graph.inputs)
        self._run = run
        self._cache: dict[str, Array] = {}
        self._mask = np.zeros((0, 0), np.int64)

    def start(self, batch: int) -> None:
        """Forget everything and expect rows of `batch` sequences."""
        self._mask = np.zeros((batch, 0), np.int64)
        self._cache = {}
        for value in self._inputs:
            name = value.name or ""
            if name.startswith("past_key_values."):
                assert value.dtype is not None
                assert value.shape is not None
                # The batch, and the tokens before in a cache of keys and values.
                sizes = [
                    size if isinstance(size, int) else 0 if axis else batch
                    for axis, size in enumerate(value.shape)
                ]
                self._cache[name] = np.zeros(sizes, value.dtype.numpy())

    def step(
        self, tokens: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        """Feed `tokens` `[B, S]`, real where `mask` is 1; return logits `[B, S, vocab]`."""
        self._mask = np.concatenate([self._mask, mask], axis=1)
        positions = np.clip(np.cumsum(self._mask, axis=1) - 1, 0, None)[:, -tokens.shape[1] :]
        named = {
            "input_ids": tokens,
            "attention_mask": self._mask,
            "position_ids": positions,
            **self._cache,
        }
        feed = {
            str(value.name): np.ascontiguousarray(named[str(value.name)]) for value in self._inputs
        }
        outputs = self._run(feed)
        for name, past in self._cache.items():
            present = outputs[name.replace("past_key_values", "present")]
            assert present.dtype == past.dtype
            self._cache[name] = present
        logits = outputs["logits"]
        assert logits.dtype == np.float32
        return logits  # type: ignore[return-value]


def input_names(path: Path) -> list[str]:
    """Return the names of the inputs of the model at `path`, in their order."""
    return [str(value.name) for value in ir.load(path).graph.inputs]


def output_names(path: Path) -> list[str]:
    """Return the names of the outputs of the model at `path`, in their order."""
    return [str(value.name) for value in ir.load(path).graph.outputs]
