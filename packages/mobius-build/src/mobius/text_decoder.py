"""`TextDecoder`: a saved text decoder and its cache in ONNX Runtime; tokens in, logits out.

This is also how a package is fed, in code. One call takes `S` new tokens of one text that has `T`
tokens with them:

- `input_ids` int64 `[1, S]`: the new tokens.
- `attention_mask` int64 `[1, T]`: ones. (In a batch, zeros stand where a row is padded.)
- `position_ids` int64 `[1, S]`: their places in the text, from 0.
- `past_key_values.N.*`: what the call before gave as `present.N.*`. At first, a dimension that
  grows with the text has length 0, and what does not grow is zeros.

It gives `logits` float32 `[1, S, vocab]`, or `[1, 1, vocab]` where only the last token's are made.

Nothing is copied between calls: outputs are bound, and become the next inputs where they lie. Where
GroupQueryAttention alone touches the cache, past and present are one buffer for the longest text,
which the operator writes at the end of what `attention_mask` says is there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from mobius.decoder_graph import LOGITS, POSITIONS, TOKENS
from mobius.loading import read_manifest, require_data
from mobius.manifest import MANIFEST_NAME, GenerationEntry, Manifest
from mobius.ort import CPU, Array, OrtError, import_onnxruntime, open_session, to_ort_value
from mobius_eps import MobiusError, ep_registry

__all__ = ["RunError", "TextDecoder"]

MASK = "attention_mask"
_PAST, _PRESENT = "past_key_values.", "present."
_logger = logging.getLogger(__name__)

# Where a provider keeps what it is given; others take and give memory of the host.
_DEVICES = {"CUDAExecutionProvider": "cuda", "DmlExecutionProvider": "dml"}


class RunError(MobiusError, ValueError):
    """A package is not a text decoder, or a text does not fit it."""


class TextDecoder:
    """One text, as far as it has been read.

    Attributes:
        generation: What the package says about generating text.
        manifest: All that it says.
        providers: Execution providers that the session has, by ONNX Runtime's names.
        length: Tokens that the cache holds.
    """

    generation: GenerationEntry
    manifest: Manifest
    providers: tuple[str, ...]
    length: int

    def __init__(self, folder: Path, *, providers: Sequence[str] | None = None) -> None:
        """Load the package in `folder`.

        Args:
            folder: What `ModelPackage.save` wrote.
            providers: Execution providers by ONNX Runtime's names, the preferred one first; `None`
                for the one that the package was built for, or the CPU where this ONNX Runtime lacks
                it.

        Raises:
            PackageLoadError: if it is no package, or its weights are missing.
            RunError: if it is not a text decoder with weights.
            OrtMissingError: if ONNX Runtime is not installed.
            OrtError: if it does not load the graph.
        """
        self.manifest = read_manifest(folder / MANIFEST_NAME)
        self.generation = _generation(self.manifest, folder)
        (entry,) = self.manifest.models.values()
        require_data(self.manifest, folder)
        self._session = open_session(
            folder / entry.path, providers or _providers(self.manifest.execution_provider)
        )
        self.providers = tuple(self._session.native.get_providers())
        self._device = _DEVICES.get(self.providers[0], "cpu")
        inputs = {port.name: port for port in self._session.inputs}
        self._caches = [port for name, port in inputs.items() if name.startswith(_PAST)]
        others = inputs.keys() - {port.name for port in self._caches} - {TOKENS, MASK, POSITIONS}
        if others:
            raise RunError(
                f"{folder / entry.path} takes {', '.join(sorted(others))} too, which a text "
                "decoder has no values for."
            )
        self._taken = inputs.keys() & {TOKENS, MASK, POSITIONS}
        self._presents = [port.name.replace(_PAST, _PRESENT) for port in self._caches]
        self._binding: Any = None
        self._capacity = 0
        self.length = 0

    def start(self, capacity: int | None = None) -> None:
        """Forget the text.

        Args:
            capacity: Tokens of the longest text to come, which a shared cache is made for; `None`
                for as many as the model reads.

        Raises:
            RunError: if the model does not read so many.
        """
        limit = self.generation.context_length
        capacity = limit if capacity is None else capacity
        if not 0 < capacity <= limit:
            raise RunError(f"A text of {capacity} tokens does not fit: the model reads {limit}.")
        self._capacity = capacity
        self.length = 0
        self._binding = self._session.native.io_binding()
        self._binding.bind_output(LOGITS, "cpu")
        shared = self.generation.shared_cache
        for port, present in zip(self._caches, self._presents, strict=True):
            length = capacity if shared else 0
            shape = [1, *(dim if isinstance(dim, int) else length for dim in port.shape[1:])]
            value = self.make_cache(shape, port.dtype, self._device)
            self._binding.bind_ortvalue_input(port.name, value)
            if shared:
                self._binding.bind_ortvalue_output(present, value)
            else:
                self._binding.bind_output(present, self._device)

    def read(self, tokens: Sequence[int]) -> Array:
        """Read `tokens` after what was read before; return the logits after the last, `[vocab]`.

        Raises:
            RunError: if the text becomes longer than `start` was told.
            OrtError: with what ONNX Runtime says.
        """
        if self._binding is None:
            self.start()
        total = self.length + len(tokens)
        if not tokens or total > self._capacity:
            raise RunError(
                f"{len(tokens)} tokens do not fit after {self.length} of at most {self._capacity}."
            )
        values = {
            TOKENS: np.array([tokens], np.int64),
            MASK: np.ones((1, total), np.int64),
            POSITIONS: np.arange(self.length, total, dtype=np.int64)[None],
        }
        for name in self._taken:
            self._binding.bind_ortvalue_input(name, to_ort_value(values[name], ir.DataType.INT64))
        try:
            self._session.native.run_with_iobinding(self._binding)
        except Exception as error:  # ONNX Runtime has a class of its own for each status
            raise OrtError(f"{self._session.path} does not run: {error}") from error
        self.length = total
        return self._take_outputs()

    def _take_outputs(self) -> Array:
        """Make what was given what is taken next, and return the last logits."""
        # In the order in which they were bound first.
        logits_value, *caches = self._binding.get_outputs()
        if not self.generation.shared_cache:
            for port, present, value in zip(self._caches, self._presents, caches, strict=True):
                self._binding.bind_ortvalue_input(port.name, value)
                # Else the next call would write over what it reads.
                self._binding.bind_output(present, self._device)
        logits: Array = logits_value.numpy()[0, -1]
        self._binding.bind_output(LOGITS, "cpu")
        return logits

    @staticmethod
    def make_cache(shape: Sequence[int], dtype: ir.DataType, device: str) -> Any:
        """Return an OrtValue for a cache before the first token; on the CPU, it is zeros."""
        if device == "cpu":
            return to_ort_value(np.zeros(shape, dtype.numpy()), dtype)
        create = import_onnxruntime().OrtValue.ortvalue_from_shape_and_type
        return create(list(shape), int(dtype), device)


def _generation(manifest: Manifest, folder: Path) -> GenerationEntry:
    if manifest.generation is None or len(manifest.models) != 1:
        raise RunError(
            f"{folder} is not a package with one text decoder, so no text can be generated."
        )
    if not manifest.weights:
        raise RunError(f"{folder} was saved without weights. Build it with them.")
    return manifest.generation


def _providers(ep: str) -> tuple[str, ...]:
    """Return what a package for `ep` runs on here."""
    known = ep_registry.get(ep)  # it may have been registered where the package was built
    name = None if known is None else known.runtime_names.ort
    available = import_onnxruntime().get_available_providers()
    if name is None or name in available:
        return (name or CPU,)
    _logger.warning(
        "The package is for %s, which this ONNX Runtime lacks; it runs on %s.", name, CPU
    )
    return (CPU,)
