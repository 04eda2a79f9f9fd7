"""Helium 1. Source: `transformers` `HeliumForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields


class Helium(DecoderArchitecture):
    """Neighbouring pairs rotate; `attention_bias` leaves the output projection out."""

    model_type = "helium"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "num_key_value_heads": 20,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-8,
        "attention_bias": False,
        "mlp_bias": False,
    }

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the biases and the kind of rotation."""
        return super().arguments(fields) | {
            "rope_interleaved": True,
            "attention_bias": fields.flag("attention_bias"),
            "mlp_bias": fields.flag("mlp_bias"),
        }


ARCHITECTURE = Helium()
