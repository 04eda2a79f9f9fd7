"""Qwen 1.5, 2 and 2.5. Source: `transformers` `Qwen2ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.windows import Windows, switched_by_flag


class Qwen2(DecoderArchitecture):
    """Query, key and value always have a bias, whatever the config says; the output has none."""

    model_type = "qwen2"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    }
    fixed: ClassVar[Mapping[str, object]] = {"attention_bias": True}

    def windows(self, fields: ConfigFields) -> Windows:
        """Return the windows that `use_sliding_window` allows."""
        return switched_by_flag(fields)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments and the bias."""
        return super().arguments(fields) | {"attention_bias": True}


ARCHITECTURE = Qwen2()
