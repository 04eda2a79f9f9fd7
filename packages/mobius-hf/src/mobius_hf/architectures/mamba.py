"""Mamba. Source: `transformers` `MambaForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MambaConfig
from mobius_components.config import MAMBA
from mobius_hf.config import ConfigFields
from mobius_hf.state_spaces import StateSpaceArchitecture, read_rank


class Mamba(StateSpaceArchitecture):
    """A selective state space in every layer, and nothing else."""

    model_type = "mamba"
    defaults: ClassVar[Mapping[str, Any]] = {
        **StateSpaceArchitecture.defaults,
        "state_size": 16,
        "tie_word_embeddings": True,
    }
    fixed: ClassVar[Mapping[str, object]] = {"rms_norm": True, "ssm_cfg": {}}
    # The original implementation's names for sizes that are stated under those of transformers.
    irrelevant = StateSpaceArchitecture.irrelevant | {
        "d_inner",
        "d_model",
        "intermediate_size",
        "n_layer",
        "pad_vocab_size_multiple",
    }

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments and the state space."""
        shared = super().arguments(fields)
        mamba = MambaConfig(
            channels=shared["intermediate_size"],
            state_size=fields.integer("state_size"),
            time_step_rank=read_rank(fields, "time_step_rank"),
            conv_taps=fields.integer("conv_kernel"),
            conv_bias=fields.flag("use_conv_bias"),
            projection_bias=fields.flag("use_bias"),
            activation=fields.text("hidden_act"),
            **self.parameter_norm(fields),
        )
        kinds = (MAMBA,) * shared["num_hidden_layers"]
        return shared | {"layer_types": kinds, "mamba": mamba}

    def parameter_norm(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments for norms of the scan's parameters, none here."""
        del fields
        return {}


ARCHITECTURE = Mamba()
