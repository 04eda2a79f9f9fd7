"""Gemma 2. Source: `transformers` `Gemma2ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.gemma import Gemma
from mobius_hf.config import ConfigFields
from mobius_hf.windows import Windows, by_layer_types


class Gemma2(Gemma):
    """Norms before and after each part, soft caps, every other layer sliding."""

    model_type = "gemma2"
    activation_field = "hidden_activation"
    defaults: ClassVar[Mapping[str, Any]] = {
        **Gemma.defaults,
        "hidden_activation": "gelu_pytorch_tanh",
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    }

    # transformers reads `hidden_activation` alone.
    irrelevant = frozenset({"hidden_act"})

    def windows(self, fields: ConfigFields) -> Windows:
        """Return the window of the sliding layers."""
        return by_layer_types(fields)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Gemma, the caps and the scale of the scores."""
        return super().arguments(fields) | {
            "layer_layout": "sandwich",
            "attention_scale": fields.reciprocal_root("query_pre_attn_scalar"),
            "attn_logit_softcapping": fields.value("attn_logit_softcapping"),
            "final_logit_softcapping": fields.value("final_logit_softcapping"),
        }


ARCHITECTURE = Gemma2()
