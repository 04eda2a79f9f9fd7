"""Mamba 2. Source: `transformers` `Mamba2ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import Mamba2Config
from mobius_components.config import MAMBA2
from mobius_hf.config import ConfigFields
from mobius_hf.state_spaces import (
    MAMBA2_DEFAULTS,
    StateSpaceArchitecture,
    read_time_step_limit,
)


class Mamba2(StateSpaceArchitecture):
    """A state space of heads in every layer, and nothing else."""

    model_type = "mamba2"
    defaults: ClassVar[Mapping[str, Any]] = {
        **StateSpaceArchitecture.defaults,
        "num_heads": 128,
        "head_dim": 64,
        "n_groups": 8,
        "state_size": 128,
        "time_step_limit": MAMBA2_DEFAULTS["time_step_limit"],
        "tie_word_embeddings": False,
    }
    # Sizes of the first Mamba, which the second does not have.
    irrelevant = StateSpaceArchitecture.irrelevant | {"time_step_rank", "norm_before_gate"}
    fixed: ClassVar[Mapping[str, object]] = {"rms_norm": True}

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments and the state space."""
        shared = super().arguments(fields)
        bias = fields.flag("use_bias")
        least, largest = read_time_step_limit(fields)
        mamba2 = Mamba2Config(
            heads=fields.integer("num_heads"),
            head_size=fields.integer("head_dim"),
            groups=fields.integer("n_groups"),
            state_size=fields.integer("state_size"),
            conv_taps=fields.integer("conv_kernel"),
            conv_bias=fields.flag("use_conv_bias"),
            projection_bias=bias,
            output_bias=bias,
            activation=fields.text("hidden_act"),
            gated_norm_eps=fields.number("layer_norm_epsilon"),
            time_step_min=least,
            time_step_max=largest,
        )
        if mamba2.channels != shared["intermediate_size"]:
            needed = f"expand * hidden_size / num_heads: {shared['intermediate_size']} channels"
            raise fields.unfit("head_dim", mamba2.head_size, needed)
        kinds = (MAMBA2,) * shared["num_hidden_layers"]
        return shared | {"layer_types": kinds, "mamba2": mamba2}


ARCHITECTURE = Mamba2()
