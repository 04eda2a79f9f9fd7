"""OLMoE. Source: `transformers` `OlmoeForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig, RouterConfig
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import TRAINING_FIELDS
from mobius_hf.stacks import GATED_STACKS


class Olmoe(DecoderArchitecture):
    """Norms of whole queries and keys, which are then clipped; experts in every layer."""

    model_type = "olmoe"
    required = (
        *DecoderArchitecture.required,
        "num_experts|num_local_experts",
        "num_experts_per_tok",
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "clip_qkv": None,
        "norm_topk_prob": False,
    }
    irrelevant = TRAINING_FIELDS
    stacks = GATED_STACKS

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the norms, the biases and the experts."""
        attention_bias, clip = fields.flag("attention_bias"), fields.value("clip_qkv")
        arguments = super().arguments(fields)
        moe = MixtureConfig(
            num_experts=fields.first_integer("num_experts", "num_local_experts"),
            num_experts_per_tok=fields.integer("num_experts_per_tok"),
            moe_intermediate_size=arguments["intermediate_size"],
            router=RouterConfig(norm_topk_prob=fields.flag("norm_topk_prob")),
        )
        return arguments | {
            "qk_norm": "full",
            "qkv_clip": None if clip is None else fields.number("clip_qkv"),
            "attention_bias": attention_bias,
            "attention_output_bias": attention_bias,
            "moe": moe,
        }


ARCHITECTURE = Olmoe()
