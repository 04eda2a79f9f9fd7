"""Solar Open. Source: `transformers` `SolarOpenForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import TRAINING_FIELDS, deepseek_mixture
from mobius_hf.stacks import GATED_STACKS


class SolarOpen(DecoderArchitecture):
    """Llama's attention, DeepSeek-V3's experts in every layer."""

    model_type = "solar_open"
    required = (
        *(name for name in DecoderArchitecture.required if name != "intermediate_size"),
        "n_routed_experts|num_local_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    }
    # Every layer has experts.
    irrelevant = TRAINING_FIELDS | {"intermediate_size"}
    fixed: ClassVar[Mapping[str, object]] = {"first_k_dense_replace": 0}
    stacks = GATED_STACKS

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the bias and the experts."""
        return super().arguments(fields) | {
            "attention_bias": fields.flag("attention_bias"),
            "moe": deepseek_mixture(fields),
        }

    def feed_forward_size(self, fields: ConfigFields) -> int:
        """Return the width of an expert: no layer has another."""
        return fields.integer("moe_intermediate_size")


ARCHITECTURE = SolarOpen()
