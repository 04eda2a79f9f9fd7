"""OLMo 2. Source: `transformers` `Olmo2ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields


class Olmo2(DecoderArchitecture):
    """Norms after attention and feed-forward, and of whole queries and keys."""

    model_type = "olmo2"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
    }

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the norms and the biases."""
        attention_bias = fields.flag("attention_bias")
        return super().arguments(fields) | {
            "layer_layout": "post_norm",
            "qk_norm": "full",
            "attention_bias": attention_bias,
            "attention_output_bias": attention_bias,
        }


ARCHITECTURE = Olmo2()
