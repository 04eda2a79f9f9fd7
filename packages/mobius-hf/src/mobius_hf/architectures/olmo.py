"""OLMo 1. Source: `transformers` `OlmoForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields


class Olmo(DecoderArchitecture):
    """Layer norms without parameters; queries, keys and values may be clipped."""

    model_type = "olmo"
    epsilon_field = None
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 2048,
        "attention_bias": False,
    }

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the norms, the clip and the biases."""
        attention_bias = fields.flag("attention_bias")
        return super().arguments(fields) | {
            "norm_type": "layer_plain",
            "rms_norm_eps": 1e-5,
            "qkv_clip": fields.value("clip_qkv"),
            "attention_bias": attention_bias,
            "attention_output_bias": attention_bias,
        }


ARCHITECTURE = Olmo()
