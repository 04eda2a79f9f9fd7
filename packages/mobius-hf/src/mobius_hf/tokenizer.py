"""Files beside the weights: which to copy with a model, and how it generates text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mobius.generation import SEARCH_FIELDS, GenerationSettings, Setting
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


def copied_files(repository: Repository) -> tuple[Path, ...]:
    """Return the tokenizer, chat-template and generation files that `repository` has."""
    names = repository.names()
    return tuple(repository.path(name) for name in COPIED if name in names)


def read_generation(config: Mapping[str, Any], files: tuple[Path, ...]) -> GenerationSettings:
    """Return special tokens and search defaults.

    `generation_config.json` decides; for tokens that it does not name, `config` does. The defaults
    come from the first alone, as in transformers.

    Args:
        config: Content of `config.json`.
        files: What `copied_files` returned.

    Raises:
        CheckpointConfigError: if a token id is no integer of at least 0, or a default is of the
            wrong type.
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
    return GenerationSettings(
        bos=bos[0] if bos else None,
        eos=ids("eos_token_id"),
        pad=pad[0] if pad else None,
        search=_search(generation),
    )


def _search(generation: Mapping[str, Any]) -> dict[str, Setting]:
    search: dict[str, Setting] = {}
    for name, kind in SEARCH_FIELDS.items():
        value = generation.get(name)
        if value is None:
            continue
        accepted = (int, float) if kind is float else kind
        # bool is an int to isinstance
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise CheckpointConfigError(
                f"{GENERATION_CONFIG}: {name} is {value!r}; needed: {kind.__name__}, or null."
            )
        search[name] = value
    return search
