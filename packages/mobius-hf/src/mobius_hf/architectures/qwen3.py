"""Qwen3, dense. Source: `transformers` `Qwen3ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.windows import Windows, switched_by_flag


class Qwen3(DecoderArchitecture):
    """Query and key heads are normalised; `attention_bias` is for all four projections."""

    model_type = "qwen3"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "attention_bias": False,
    }

    def windows(self, fields: ConfigFields) -> Windows:
        """Return the windows that `use_sliding_window` allows."""
        return switched_by_flag(fields)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the norms and the biases."""
        attention_bias = fields.flag("attention_bias")
        return super().arguments(fields) | {
            "qk_norm": "head",
            "attention_bias": attention_bias,
            "attention_output_bias": attention_bias,
        }


ARCHITECTURE = Qwen3()
