"""`QueryTemperatureConfig`: queries that grow with their position."""

from __future__ import annotations

import dataclasses

from mobius_components.config_checks import check_counts, check_flags, check_positive, unfit


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryTemperatureConfig:
    """The factor `1 + beta * log(1 + floor((position + offset) / length))` of a query.

    Source: https://arxiv.org/abs/2501.19399, `transformers` `get_llama_4_attn_scale`.

    Attributes:
        beta: How fast it grows.
        length: Tokens until it grows for the first time.
        offset: Added to the position (Llama 4 counts from one).
        without_rotation: Only layers without a rotary embedding have it (Llama 4); else all.

    Raises:
        ConfigError: if a value is out of range.
    """

    beta: float
    length: int
    offset: int = 0
    without_rotation: bool = False

    def __post_init__(self) -> None:
        check_counts(self, "length")
        check_flags(self, "without_rotation")
        check_positive(self, "beta")
        if self.offset < 0:
            raise unfit(self, "offset", "an integer of at least 0")
