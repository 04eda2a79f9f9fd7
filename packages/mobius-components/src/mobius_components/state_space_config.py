"""`MambaConfig`, `Mamba2Config`: the numbers of a selective state space, first and second form.

Names are those of the papers' sizes rather than of one family's `config.json`: families spell them
in four ways (`state_size`, `mamba_d_state`, `ssm_state_size`).
"""

from __future__ import annotations

import dataclasses
import math

from mobius_components.config_checks import (
    check_activation,
    check_counts,
    check_divides,
    check_flags,
    check_positive,
    check_taps,
    unfit,
)

PARAMETER_NORMS = (None, "rms", "rms_plain")
GATED_NORMS = (None, "after_gate", "before_gate")
_SECTIONS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class MambaConfig:
    """Mamba, the first form: every channel has a state, and decays of its own.

    Source: https://arxiv.org/abs/2312.00752.

    Attributes:
        channels: Width of what is scanned, `expand * hidden_size`.
        state_size: Numbers in the state of a channel.
        time_step_rank: Width that time steps are projected from.
        conv_taps: Taps of the convolution before the scan.
        conv_bias: The convolution has a bias.
        projection_bias: The projections in and out have a bias.
        activation: Activation after the convolution.
        parameter_norm: Norm of what time steps, B and C are made from: `"rms"` (Jamba),
            `"rms_plain"` (without weights, Falcon Mamba) or `None`.
        parameter_norm_eps: Epsilon of that norm.

    Raises:
        ConfigError: if a value is out of range.
    """

    channels: int
    state_size: int
    time_step_rank: int
    conv_taps: int
    conv_bias: bool = True
    projection_bias: bool = False
    activation: str = "silu"
    parameter_norm: str | None = None
    parameter_norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        check_counts(self, "channels", "state_size", "time_step_rank")
        check_taps(self, "conv_taps")
        check_flags(self, "conv_bias", "projection_bias")
        check_activation(self, "activation")
        if self.parameter_norm not in PARAMETER_NORMS:
            raise unfit(self, "parameter_norm", f"one of {PARAMETER_NORMS}")
        check_positive(self, "parameter_norm_eps")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mamba2Config:
    """Mamba 2: heads with a matrix as state, and one decay a head.

    Source: https://arxiv.org/abs/2405.21060.

    Attributes:
        heads: Number of heads.
        head_size: Width of a head; `heads * head_size` is the width of what is scanned.
        groups: Number of B and C; heads of a group share them.
        state_size: Width of B and C.
        conv_taps: Taps of the convolution before the scan.
        conv_bias: The convolution has a bias.
        projection_bias: The projection in has a bias.
        output_bias: The projection out has a bias.
        activation: Activation after the convolution.
        time_step_min: Least time step.
        time_step_max: Largest time step.
        gated_norm: Where the output is normalised, group by group: `"after_gate"` (Mamba 2),
            `"before_gate"`, or `None` for the gate alone (Falcon-H1).
        gated_norm_eps: Epsilon of that norm.
        input_multiplier: Factor of what is projected.
        section_multipliers: Factors of the parts of the projection: gate, x, B, C, time step
            (Falcon-H1).

    Raises:
        ConfigError: if a value is out of range or two fields contradict each other.
    """

    heads: int
    head_size: int
    groups: int
    state_size: int
    conv_taps: int
    conv_bias: bool = True
    projection_bias: bool = False
    output_bias: bool = False
    activation: str = "silu"
    time_step_min: float = 0.0
    time_step_max: float = math.inf
    gated_norm: str | None = "after_gate"
    gated_norm_eps: float = 1e-5
    input_multiplier: float = 1.0
    section_multipliers: tuple[float, ...] = (1.0,) * _SECTIONS

    def __post_init__(self) -> None:
        check_counts(self, "heads", "head_size", "groups", "state_size")
        check_taps(self, "conv_taps")
        check_flags(self, "conv_bias", "projection_bias", "output_bias")
        check_activation(self, "activation")
        check_divides(self, "groups", "heads")
        if not 0 <= self.time_step_min < self.time_step_max:
            raise unfit(self, "time_step_min", f"0 or more, below {self.time_step_max}")
        if self.gated_norm not in GATED_NORMS:
            raise unfit(self, "gated_norm", f"one of {GATED_NORMS}")
        check_positive(self, "gated_norm_eps")
        object.__setattr__(self, "section_multipliers", tuple(self.section_multipliers))
        if len(self.section_multipliers) != _SECTIONS:
            raise unfit(self, "section_multipliers", f"{_SECTIONS} numbers")

    @property
    def channels(self) -> int:
        """Width of what is scanned."""
        return self.heads * self.head_size

    @property
    def group_width(self) -> int:
        """Width of all B, and of all C."""
        return self.groups * self.state_size

    @property
    def conv_channels(self) -> int:
        """Width of what is convolved: x, B and C."""
        return self.channels + 2 * self.group_width
