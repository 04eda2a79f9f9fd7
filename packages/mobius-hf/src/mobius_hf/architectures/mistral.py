"""Mistral 7B and what follows its config. Source: `transformers` `MistralForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.windows import Windows, same_for_all


class Mistral(DecoderArchitecture):
    """No biases; one sliding window for every layer, or none if it is null."""

    model_type = "mistral"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 4096 * 32,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    }

    def windows(self, fields: ConfigFields) -> Windows:
        """Return `sliding_window` for every layer."""
        return same_for_all(fields, fields.optional_integer("sliding_window"))


ARCHITECTURE = Mistral()
