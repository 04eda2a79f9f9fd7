"""`measure_quality`: a package against the model that it was made from, on a text.

What a difference of weights does to a model, rounding above all, shows in three numbers: the
largest difference of a logit, how often both find the same token the likeliest, and how surprised
each is by the text (perplexity). Needs the extra `ort`.

The model that it was made from is run by the source that it comes from: mobius runs ONNX alone.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mobius.dims import Sizes, bind
from mobius.errors import VerifyError
from mobius.loading import require_data
from mobius.model_files import find_graphs, read_manifest
from mobius.ort import CPU, Array, Port, open_session
from mobius.sources import SourceError, SourceOptions, load_source
from mobius.text_decoder import TextDecoder

__all__ = [
    "Quality",
    "Reference",
    "ReferenceSource",
    "bundled_text",
    "measure_quality",
    "open_reference",
]

MOST_TOKENS = 512
_FEWEST_TOKENS = 2
_LOGITS = "logits"
_RANDOM_TOKENS = 128


class Reference(Protocol):
    """A model as its makers run it."""

    vocab_size: int

    def tokens(self, text: str) -> list[int] | None:
        """Return the tokens of a text, special ones included; `None` without a tokenizer."""
        ...

    def logits(self, tokens: Sequence[int]) -> Array:
        """Return what the model makes of one row of tokens, float32 `[tokens, vocab]`."""
        ...


@runtime_checkable
class ReferenceSource(Protocol):
    """A source (`mobius.sources`) that can also run what it opens."""

    def open_reference(self, model: str, options: SourceOptions) -> Reference:
        """Return `model`, ready to run in float32."""
        ...


@dataclasses.dataclass(frozen=True)
class Quality:
    """How a package compares with its reference, over the tokens of a text.

    Attributes:
        tokens: Number of tokens.
        random: The tokens are random, because the reference has no tokenizer.
        largest: Largest difference of two logits.
        relative: That, relative to the reference's largest logit.
        top1: Share of tokens after which both find the same next one the likeliest, 0 to 1.
        perplexity: That of the package.
        reference_perplexity: That of the reference.
    """

    tokens: int
    random: bool
    largest: float
    relative: float
    top1: float
    perplexity: float
    reference_perplexity: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return dataclasses.asdict(self)


def bundled_text() -> str:
    """Return a text of some 150 words in simple English."""
    return importlib.resources.files("mobius").joinpath("quality_text.txt").read_text("utf-8")


def open_reference(model: str, options: SourceOptions, *, source: str = "huggingface") -> Reference:
    """Return the reference that an installed source has for `model`.

    Raises:
        SourceError: if the source is not installed, or runs no models.
        MobiusError: whatever the source finds wrong with the model.
    """
    found = load_source(source)
    if not isinstance(found, ReferenceSource):
        raise SourceError(
            f"The source {source!r} opens models and runs none: it has no open_reference."
        )
    return found.open_reference(model, options)


def measure_quality(
    package: Path,
    reference: Reference,
    *,
    text: str | None = None,
    most_tokens: int = MOST_TOKENS,
    providers: Sequence[str] = (CPU,),
) -> Quality:
    """Compare a package with a reference.

    Args:
        package: Folder of a text decoder, or an `.onnx` file of one.
        reference: The model that it was made from.
        text: What both read; `None` for the text that comes with mobius. Without a tokenizer they
            read random tokens.
        most_tokens: How many tokens of the text are read at most, no more than the model reads.
        providers: Execution providers by ONNX Runtime's names.

    Raises:
        VerifyError: if the package is no text decoder, the two have other vocabularies, or the
            text is too short.
        ModelFileError: if there is no model, or it lacks its weights.
        OrtError: if ONNX Runtime does not run it.
    """
    tokens = reference.tokens(bundled_text() if text is None else text)
    random = tokens is None
    if tokens is None:
        generator = np.random.default_rng(0)
        tokens = generator.integers(0, reference.vocab_size, _RANDOM_TOKENS).tolist()
    tokens = tokens[: min(most_tokens, _longest(package))]
    if len(tokens) < _FEWEST_TOKENS:
        raise VerifyError(
            f"The text has {len(tokens)} tokens; at least {_FEWEST_TOKENS} are needed, since each "
            "is compared with what was expected after the ones before it."
        )
    ours = _logits(package, tokens, providers)
    theirs = reference.logits(tokens)
    if ours.shape != theirs.shape:
        raise VerifyError(
            f"The package gives {ours.shape[1]} logits for each of {ours.shape[0]} tokens, the "
            f"reference {theirs.shape[1]} for each of {theirs.shape[0]}. Is it the checkpoint that "
            "the package was built from?"
        )
    largest = float(np.abs(ours - theirs).max())
    return Quality(
        tokens=len(tokens),
        random=random,
        largest=largest,
        relative=largest / float(np.abs(theirs).max()),
        top1=float((ours.argmax(axis=1) == theirs.argmax(axis=1)).mean()),
        perplexity=_perplexity(ours, tokens),
        reference_perplexity=_perplexity(theirs, tokens),
    )


def _longest(package: Path) -> int:
    """Return how long a text may be, as far as the package says."""
    manifest = read_manifest(package)
    if manifest is None or manifest.generation is None:
        return sys.maxsize
    return manifest.generation.context_length


def _logits(package: Path, tokens: Sequence[int], providers: Sequence[str]) -> Array:
    """Return the logits after each token, float32 `[tokens, vocab]`."""
    graphs = find_graphs(package)
    if len(graphs) != 1:
        raise VerifyError(
            f"{package} has the graphs {', '.join(graphs)}; needed: one, a text decoder."
        )
    (path,) = graphs.values()
    if (manifest := read_manifest(package)) is not None:
        require_data(manifest, package)
    session = open_session(path, providers)
    outputs = {port.name: port for port in session.outputs}
    inputs = {port.name for port in session.inputs}
    if _LOGITS not in outputs or "input_ids" not in inputs:
        raise VerifyError(
            f"{path} has no input 'input_ids' or no output {_LOGITS!r}; needed: a text decoder."
        )
    if outputs[_LOGITS].shape[1] == 1:  # of the last token alone
        del session
        decoder = TextDecoder(package, providers=providers)
        decoder.start(len(tokens))
        rows: Array = np.stack([decoder.read([token]) for token in tokens])
        return rows.astype(np.float32)
    shapes = bind([session.inputs], Sizes(batch=1, sequence=len(tokens), past=0))
    feed = {port.name: _value(port, shapes[port.name], tokens) for port in session.inputs}
    logits: Array = session.run(feed)[_LOGITS][0]
    return logits.astype(np.float32)


def _value(port: Port, shape: tuple[int, ...], tokens: Sequence[int]) -> Array:
    """Return what the input takes for one row of tokens and an empty cache."""
    values = {
        "input_ids": np.array(tokens),
        "attention_mask": np.ones(len(tokens)),
        "position_ids": np.arange(len(tokens)),
    }
    value = values.get(port.name)
    if value is None:
        return np.zeros(shape, port.dtype.numpy())
    return np.broadcast_to(value, shape).astype(port.dtype.numpy())


def _perplexity(logits: Array, tokens: Sequence[int]) -> float:
    """Return exp of the mean negative log-likelihood of each token after those before it."""
    numbers = logits[:-1].astype(np.float64)
    numbers -= numbers.max(axis=1, keepdims=True)
    likelihood = numbers - np.log(np.exp(numbers).sum(axis=1, keepdims=True))
    picked = likelihood[np.arange(len(tokens) - 1), np.array(tokens[1:])]
    return float(np.exp(-picked.mean()))
