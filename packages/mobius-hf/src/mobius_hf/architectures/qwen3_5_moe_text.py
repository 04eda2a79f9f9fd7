"""Qwen3.5 with experts, the text part. Source: `transformers` `Qwen3_5MoeForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig, RouterConfig
from mobius_hf.architectures.qwen3_5_text import Qwen35Text
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import SHARED_EXPERT_RENAME, TRAINING_FIELDS
from mobius_hf.stacks import GATED_STACKS


class Qwen35MoeText(Qwen35Text):
    """Qwen3.5 with experts in every layer."""

    model_type = "qwen3_5_moe_text"
    required = tuple(
        field for field in Qwen35Text.required if not field.startswith("intermediate_size")
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        **Qwen35Text.defaults,
        "num_key_value_heads": 2,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    }
    irrelevant = Qwen35Text.irrelevant | TRAINING_FIELDS | {"intermediate_size"}
    stacks = GATED_STACKS
    renames = (
        SHARED_EXPERT_RENAME,
        *Qwen35Text.renames,
    )

    def feed_forward_size(self, fields: ConfigFields) -> int:
        """Return the width of an expert: there are no other feed-forward layers."""
        return fields.integer("moe_intermediate_size")

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Qwen3.5 and the experts."""
        moe = MixtureConfig(
            num_experts=fields.integer("num_experts"),
            num_experts_per_tok=fields.integer("num_experts_per_tok"),
            moe_intermediate_size=fields.integer("moe_intermediate_size"),
            router=RouterConfig(norm_topk_prob=True),
            shared_expert_intermediate_size=fields.integer("shared_expert_intermediate_size"),
            shared_expert_gate=True,
        )
        return super().arguments(fields) | {"moe": moe}


ARCHITECTURE = Qwen35MoeText()
