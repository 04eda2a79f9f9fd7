"""Ministral 8B of 2024. Source: `transformers` `MinistralForCausalLM`."""

from __future__ import annotations

from mobius_hf.architectures.mistral import Mistral
from mobius_hf.config import ConfigFields
from mobius_hf.windows import Windows, by_layer_types


class Ministral(Mistral):
    """Mistral with sliding and full layers."""

    model_type = "ministral"

    def windows(self, fields: ConfigFields) -> Windows:
        """Return the window of the sliding layers."""
        return by_layer_types(fields)


ARCHITECTURE = Ministral()
