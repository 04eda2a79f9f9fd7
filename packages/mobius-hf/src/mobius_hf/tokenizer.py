"""Files beside the weights: which to copy with a model, and the token ids that end a text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mobius_hf.config import read_config
from mobius_hf.errors import CheckpointConfigError
from mobius_hf.repository import Repository

GENERATION_CONFIG = "generation_config.json"
COPIED = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    GENERATION_CONFIG,
    "merges.txt",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tekken.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)


@dataclasses.dataclass(frozen=True)
class TokenIds:
    """Special tokens of a model.

    Attributes:
        bos: Starts a text, or `None`.
        eos: Each of them ends a text.
        pad: Fills shorter rows, or `None` if the model has none of its own.
    """

    bos: int | None
    eos: tuple[int, ...]
    pad: int | None


def copied_files(repository: Repository) -> tuple[Path, ...]:
    """Return the tokenizer, chat-template and generation files that `repository` has."""
    names = repository.names()
    return tuple(repository.path(name) for name in COPIED if name in names)


def read_token_ids(config: Mapping[str, Any], files: tuple[Path, ...]) -> TokenIds:
    """Return the special tokens: `generation_config.json` decides, field by field, then `config`.

    Args:
        config: Content of `config.json`.
        files: What `copied_files` returned.

    Raises:
        CheckpointConfigError: if an id is no integer of at least 0.
    """
    generation: Mapping[str, Any] = {}
    for path in files:
        if path.name == GENERATION_CONFIG:
            generation = read_config(path)

    def ids(name: str) -> tuple[int, ...]:
        value = generation.get(name)
        if value is None:
            value = config.get(name)
        values = [] if value is None else value if isinstance(value, list) else [value]
        for item in values:
            if isinstance(item, bool) or not isinstance(item, int) or item < 0:
                raise CheckpointConfigError(
                    f"{name} is {value!r}; needed: an integer of at least 0, or a list of them."
                )
        return tuple(values)

    bos, pad = ids("bos_token_id"), ids("pad_token_id")
    return TokenIds(bos[0] if bos else None, ids("eos_token_id"), pad[0] if pad else None)
