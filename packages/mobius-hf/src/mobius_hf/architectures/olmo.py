"""OLMo 1. Source: `transformers` `OlmoForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields


class Olmo(DecoderArchitecture):
    """Layer norms without parameters."""

    model_type = "olmo"
    epsilon_field = None
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 2048,
        "attention_bias": False,
    }

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the norms and the biases."""
        attention_bias = fields.flag("attention_bias")
        return super().arguments(fields) | {
            "norm_type": "layer_plain",
            "rms_norm_eps": 1e-5,
            "attention_bias": attention_bias,
            "attention_output_bias": attention_bias,
        }


ARCHITECTURE = Olmo()
