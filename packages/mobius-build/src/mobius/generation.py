"""`GenerationSettings`: what a checkpoint says about generating text, beside its graph.

Names and meanings are those of `transformers` `GenerationConfig`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["SEARCH_FIELDS", "GenerationSettings", "Setting"]

Setting = bool | int | float

SEARCH_FIELDS: Mapping[str, type[Setting]] = MappingProxyType(
    {
        "do_sample": bool,
        "temperature": float,
        "top_k": int,
        "top_p": float,
        "repetition_penalty": float,
        "no_repeat_ngram_size": int,
        "min_length": int,
        "num_beams": int,
        "length_penalty": float,
        "diversity_penalty": float,
    }
)
"""Fields that say how the next token is chosen, and the type of each; a float may be an integer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """Special tokens and search defaults of a checkpoint.

    Attributes:
        bos: Starts a text, or `None`.
        eos: Each of them ends a text.
        pad: Fills shorter rows, or `None` if the model has none of its own.
        search: Values of `SEARCH_FIELDS` that the checkpoint gives; transformers' defaults hold for
            the others.
    """

    bos: int | None = None
    eos: tuple[int, ...] = ()
    pad: int | None = None
    search: Mapping[str, Setting] = dataclasses.field(default_factory=dict)
