"""Arcee AFM. Source: `transformers` `ArceeForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.llama import Llama
from mobius_hf.config import ConfigFields


class Arcee(Llama):
    """Llama whose feed-forward layer has no gate."""

    model_type = "arcee"
    defaults: ClassVar[Mapping[str, Any]] = {
        **Llama.defaults,
        "hidden_act": "relu2",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    }
    fixed: ClassVar[Mapping[str, object]] = {}

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Llama without the gate."""
        return super().arguments(fields) | {"mlp_gated": False}


ARCHITECTURE = Arcee()
