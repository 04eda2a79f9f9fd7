"""Llama 1 to 3.x, and models that took its config. Source: `transformers` `LlamaForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields


class Llama(DecoderArchitecture):
    """Optional biases: `attention_bias` is for all four projections."""

    model_type = "llama"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 2048,
        "attention_bias": False,
        "mlp_bias": False,
    }
    fixed: ClassVar[Mapping[str, object]] = {"rope_interleaved": False}

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments and the biases."""
        attention_bias = fields.flag("attention_bias")
        return super().arguments(fields) | {
            "attention_bias": attention_bias,
            "attention_output_bias": attention_bias,
            "mlp_bias": fields.flag("mlp_bias"),
        }


ARCHITECTURE = Llama()
