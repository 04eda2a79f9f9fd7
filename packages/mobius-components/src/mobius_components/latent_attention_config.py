"""`LatentAttentionConfig`: the ranks and widths of multi-head latent attention.

Field names are HuggingFace `config.json` keys.
"""

from __future__ import annotations

import dataclasses

from mobius_components.config_checks import check_counts, check_positive, unfit


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentAttentionConfig:
    """Keys and values made of one narrow vector a token. Source: https://arxiv.org/abs/2405.04434.

    Attributes:
        q_lora_rank: Width that queries are made of; `None` for the residual stream itself.
        kv_lora_rank: Width that keys and values are made of.
        qk_rope_head_dim: Part of a query or key head that rotates; all heads share that of a key.
        qk_nope_head_dim: The rest of it.
        v_head_dim: Width of a value head.
        norm_eps: Epsilon of the norms of the narrow vectors.

    Raises:
        ConfigError: if a value is out of range.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        optional = () if self.q_lora_rank is None else ("q_lora_rank",)
        check_counts(self, *optional, "kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
        check_counts(self, "qk_rope_head_dim")
        if self.qk_rope_head_dim % 2:
            raise unfit(self, "qk_rope_head_dim", "an even number")
        check_positive(self, "norm_eps")

    @property
    def qk_head_dim(self) -> int:
        """Width of a query or key head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim
