"""Jais 2. Source: `transformers` `Jais2ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.arcee import Arcee
from mobius_hf.config import ConfigFields


class Jais2(Arcee):
    """Arcee with layer norms and biases."""

    model_type = "jais2"
    epsilon_field = "layer_norm_eps"
    defaults: ClassVar[Mapping[str, Any]] = {
        **Arcee.defaults,
        "max_position_embeddings": 8192,
        "layer_norm_eps": 1e-5,
        "attention_bias": True,
        "mlp_bias": True,
    }

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Arcee and the norms."""
        return super().arguments(fields) | {"norm_type": "layer"}


ARCHITECTURE = Jais2()
