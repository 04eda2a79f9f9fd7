"""What Gemma 3n and Gemma 4 have beside a residual stream: an input for each layer, AltUp."""

from __future__ import annotations

import dataclasses

from mobius_components.config_checks import check_counts, check_flags, unfit


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerLayerInputConfig:
    """A narrow vector for each token and layer. Source: `transformers` `Gemma3nTextModel`.

    Attributes:
        vocab_size: Rows of the table of these vectors; tokens past them have row 0.
        hidden_size: Width of a vector.

    Raises:
        ConfigError: if a value is out of range.
    """

    vocab_size: int
    hidden_size: int

    def __post_init__(self) -> None:
        check_counts(self, "vocab_size", "hidden_size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AltUpConfig:
    """Several residual streams, of which layers compute one and predict the others.

    Source: https://arxiv.org/abs/2301.13310, `transformers` `Gemma3nTextAltUp`.

    Attributes:
        num_inputs: Number of streams.
        active: The stream that layers compute.
        correct_scale: What a layer's own input is added for is scaled first.
        laurel_rank: Width of the learned residual beside attention.

    Raises:
        ConfigError: if a value is out of range.
    """

    num_inputs: int
    active: int
    correct_scale: bool
    laurel_rank: int

    def __post_init__(self) -> None:
        check_counts(self, "num_inputs", "laurel_rank")
        check_flags(self, "correct_scale")
        if self.active not in range(self.num_inputs):
            raise unfit(self, "active", f"one of the {self.num_inputs} streams")
