"""Granite 3 with experts. Source: `transformers` `GraniteMoeForCausalLM`."""

from __future__ import annotations

from typing import Any

from mobius_components import MixtureConfig, RouterConfig
from mobius_hf.architectures.granite import Granite
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import TRAINING_FIELDS

_LAYER = r"^(?:model\.)?(layers\.\d+)\.block_sparse_moe\."


class GraniteMoe(Granite):
    """Granite with experts in every layer, stored as one tensor for all."""

    model_type = "granitemoe"
    required = (*Granite.required, "num_local_experts", "num_experts_per_tok")
    irrelevant = TRAINING_FIELDS
    renames = (
        (rf"{_LAYER}input_linear\.weight$", r"model.\1.mlp.experts.gate_up_proj"),
        (rf"{_LAYER}output_linear\.weight$", r"model.\1.mlp.experts.down_proj"),
        (rf"{_LAYER}router\.(?:layer\.)?", r"model.\1.mlp.gate."),
        (rf"{_LAYER}experts\.", r"model.\1.mlp.experts."),
        *Granite.renames,
    )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Granite and the experts."""
        arguments = super().arguments(fields)
        moe = MixtureConfig(
            num_experts=fields.integer("num_local_experts"),
            num_experts_per_tok=fields.integer("num_experts_per_tok"),
            moe_intermediate_size=arguments["intermediate_size"],
            router=RouterConfig(scoring="softmax_of_chosen"),
        )
        return arguments | {"moe": moe}


ARCHITECTURE = GraniteMoe()
