"""`ShortConvConfig`, `GatedDeltaConfig`, `RgLruConfig`: numbers of mixers with a small state."""

from __future__ import annotations

import dataclasses

from mobius_components.config_checks import (
    check_activation,
    check_counts,
    check_divides,
    check_flags,
    check_taps,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShortConvConfig:
    """A gated convolution over the last few tokens (LFM2).

    Attributes:
        taps: Tokens that it reaches, the current one included.
        bias: Convolution and projections have a bias.

    Raises:
        ConfigError: if a value is out of range.
    """

    taps: int
    bias: bool = False

    def __post_init__(self) -> None:
        check_taps(self, "taps")
        check_flags(self, "bias")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedDeltaConfig:
    """Gated delta rule (Qwen3-Next, https://arxiv.org/abs/2412.06464).

    Attributes:
        key_heads: Heads of queries and keys.
        value_heads: Heads of values, a multiple of `key_heads`; each has a state.
        key_size: Width of a query and of a key.
        value_size: Width of a value.
        conv_taps: Taps of the convolution before.
        activation: Activation after the convolution.

    Raises:
        ConfigError: if a value is out of range or two fields contradict each other.
    """

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    conv_taps: int
    activation: str = "silu"

    def __post_init__(self) -> None:
        check_counts(self, "key_heads", "value_heads", "key_size", "value_size")
        check_taps(self, "conv_taps")
        check_divides(self, "key_heads", "value_heads")
        check_activation(self, "activation")

    @property
    def key_width(self) -> int:
        """Width of all keys."""
        return self.key_heads * self.key_size

    @property
    def value_width(self) -> int:
        """Width of all values."""
        return self.value_heads * self.value_size


@dataclasses.dataclass(frozen=True, kw_only=True)
class RgLruConfig:
    """Real-gated linear recurrent unit (RecurrentGemma, https://arxiv.org/abs/2402.19427).

    Attributes:
        width: Channels, each with one number as state.
        blocks: Blocks of the gates' projections, a divisor of `width`.
        conv_taps: Taps of the convolution before.
        activation: Activation of the other branch.

    Raises:
        ConfigError: if a value is out of range or two fields contradict each other.
    """

    width: int
    blocks: int
    conv_taps: int
    activation: str = "gelu_pytorch_tanh"

    def __post_init__(self) -> None:
        check_counts(self, "width", "blocks")
        check_taps(self, "conv_taps")
        check_divides(self, "blocks", "width")
        check_activation(self, "activation")
