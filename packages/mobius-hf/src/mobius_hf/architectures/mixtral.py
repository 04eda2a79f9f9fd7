"""Mixtral 8x7B and 8x22B. Source: `transformers` `MixtralForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig, RouterConfig
from mobius_hf.architectures.mistral import Mistral
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import MIXTRAL_RENAMES, TRAINING_FIELDS
from mobius_hf.stacks import GATED_STACKS


class Mixtral(Mistral):
    """Mistral with experts in every layer, whose shares are the softmax of the chosen logits."""

    model_type = "mixtral"
    required = (*Mistral.required, "num_local_experts|num_experts", "num_experts_per_tok")
    defaults: ClassVar[Mapping[str, Any]] = {
        **Mistral.defaults,
        "max_position_embeddings": 4096 * 32,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
    }
    fixed: ClassVar[Mapping[str, object]] = {"moe_frequency": 1}
    irrelevant = TRAINING_FIELDS | {"use_flash_attention"}
    renames = (*MIXTRAL_RENAMES, *Mistral.renames)
    stacks = GATED_STACKS

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Mistral and the experts."""
        arguments = super().arguments(fields)
        moe = MixtureConfig(
            num_experts=fields.first_integer("num_local_experts", "num_experts"),
            num_experts_per_tok=fields.integer("num_experts_per_tok"),
            moe_intermediate_size=arguments["intermediate_size"],
            router=RouterConfig(norm_topk_prob=True),
        )
        return arguments | {"moe": moe}


ARCHITECTURE = Mixtral()
