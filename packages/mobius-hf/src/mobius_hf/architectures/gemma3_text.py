"""Gemma 3, text part. Source: `transformers` `Gemma3ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.gemma2 import Gemma2
from mobius_hf.config import ConfigFields
from mobius_hf.rope import read_ropes, sliding_beside_full
from mobius_hf.windows import Windows


class Gemma3Text(Gemma2):
    """Query and key heads are normalised; sliding layers have a rotary embedding of their own."""

    model_type = "gemma3_text"
    defaults: ClassVar[Mapping[str, Any]] = {
        **Gemma2.defaults,
        "max_position_embeddings": 131072,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    }
    # The layer types say what the pattern would.
    irrelevant = Gemma2.irrelevant | {"rope_local_base_freq", "sliding_window_pattern"}

    def rotary(self, fields: ConfigFields, windows: Windows) -> dict[str, Any]:
        """Return the rotary embedding of full layers, and that of sliding ones."""
        return sliding_beside_full(read_ropes(fields, set(windows.layer_types)))

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Gemma 2 and the norms."""
        return super().arguments(fields) | {"qk_norm": "head"}


ARCHITECTURE = Gemma3Text()
