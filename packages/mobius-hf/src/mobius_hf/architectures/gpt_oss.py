"""GPT-OSS. Source: `transformers` `GptOssForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig, RouterConfig
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import TRAINING_FIELDS
from mobius_hf.transforms import Transposed
from mobius_hf.windows import Windows, by_layer_types


class GptOss(DecoderArchitecture):
    """Every other layer slides; heads have sinks, experts have biases and are clipped."""

    model_type = "gpt_oss"
    required = (
        *DecoderArchitecture.required,
        "num_local_experts|num_experts",
        "num_experts_per_tok|experts_per_token",
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0,
        "sliding_window": 128,
        "attention_bias": True,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
    }
    # Where the first layers of the pattern end is in the layer types too.
    irrelevant = TRAINING_FIELDS | {"experts_per_token", "initial_context_length"}
    renames = (
        (r"^(?:model\.)?(layers\.\d+\.mlp)\.router\.", r"model.\1.gate."),
        *DecoderArchitecture.renames,
    )
    transforms = (Transposed(r".*\.experts\.(?:gate_up|down)_proj"),)

    def windows(self, fields: ConfigFields) -> Windows:
        """Return the window of the sliding layers."""
        return by_layer_types(fields)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the sinks, the biases and the experts."""
        arguments = super().arguments(fields)
        attention_bias = fields.flag("attention_bias")
        moe = MixtureConfig(
            num_experts=fields.first_integer("num_local_experts", "num_experts"),
            num_experts_per_tok=fields.first_integer("num_experts_per_tok", "experts_per_token"),
            moe_intermediate_size=arguments["intermediate_size"],
            router=RouterConfig(scoring="softmax_of_chosen", bias=True),
            expert_bias=True,
            interleaved=True,
            swiglu_alpha=fields.number("swiglu_alpha"),
            swiglu_beta=1.0,
            swiglu_limit=fields.number("swiglu_limit"),
        )
        return arguments | {
            "attention_sinks": True,
            "attention_bias": attention_bias,
            "attention_output_bias": attention_bias,
            "moe": moe,
        }


ARCHITECTURE = GptOss()
