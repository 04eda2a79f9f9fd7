"""Granite 3 and 4, dense. Source: `transformers` `GraniteForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.llama import Llama
from mobius_hf.config import ConfigFields


class Granite(Llama):
    """Llama with four multipliers."""

    model_type = "granite"
    fixed: ClassVar[Mapping[str, object]] = {}

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Llama and the multipliers."""
        return super().arguments(fields) | {
            "embedding_multiplier": fields.number("embedding_multiplier"),
            "residual_multiplier": fields.number("residual_multiplier"),
            "logits_scaling": fields.number("logits_scaling"),
            "attention_scale": fields.number("attention_multiplier"),
        }


ARCHITECTURE = Granite()
