"""`SharedBlockConfig`: transformer blocks that several layers of a model go through."""

from __future__ import annotations

import dataclasses

from mobius_components.config_checks import check_counts, check_flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedBlockConfig:
    """Blocks of attention and feed-forward, few of them, used in turn (Zamba 2).

    A block sees the stream and the embedded tokens side by side, so its attention works on
    `2 * hidden_size`; each use adds a product of low rank of its own to the block's projections.

    Attributes:
        blocks: Number of blocks; the uses take them in turn.
        adapter_rank: Rank of what a use adds.
        attention_adapter: A use adds to queries, keys and values too, not to the feed-forward
            layer alone.
        bias: The feed-forward projections have a bias.

    Raises:
        ConfigError: if a value is out of range.
    """

    blocks: int
    adapter_rank: int
    attention_adapter: bool = False
    bias: bool = False

    def __post_init__(self) -> None:
        check_counts(self, "blocks", "adapter_rank")
        check_flags(self, "attention_adapter", "bias")
