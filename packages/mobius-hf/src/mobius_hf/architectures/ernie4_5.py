"""ERNIE 4.5, dense. Source: `transformers` `Ernie4_5ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields


class Ernie45(DecoderArchitecture):
    """Neighbouring pairs rotate; one flag for every bias."""

    model_type = "ernie4_5"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "use_bias": False,
        "tie_word_embeddings": True,
    }

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the biases and the kind of rotation."""
        bias = fields.flag("use_bias")
        return super().arguments(fields) | {
            "rope_interleaved": True,
            "attention_bias": bias,
            "attention_output_bias": bias,
            "mlp_bias": bias,
        }


ARCHITECTURE = Ernie45()
