"""Seed-OSS. Source: `transformers` `SeedOssForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields


class SeedOss(DecoderArchitecture):
    """Llama with a flag of its own for the bias of the output projection."""

    model_type = "seed_oss"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 524288,
        "attention_bias": True,
        "attention_out_bias": False,
        "mlp_bias": False,
    }

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments and the biases."""
        return super().arguments(fields) | {
            "attention_bias": fields.flag("attention_bias"),
            "attention_output_bias": fields.flag("attention_out_bias"),
            "mlp_bias": fields.flag("mlp_bias"),
        }


ARCHITECTURE = SeedOss()
