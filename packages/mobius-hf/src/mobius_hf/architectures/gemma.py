"""Gemma 1. Source: `transformers` `GemmaForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.transforms import PlusOne


class Gemma(DecoderArchitecture):
    """Norms are stored less one; embedded tokens are scaled by the root of the width."""

    model_type = "gemma"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "attention_bias": False,
        "tie_word_embeddings": True,
    }
    fixed: ClassVar[Mapping[str, object]] = {"use_bidirectional_attention": False}
    transforms = (PlusOne(r".*norm\.weight"),)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the biases and the scale of the embedding."""
        arguments = super().arguments(fields)
        attention_bias = fields.flag("attention_bias")
        return arguments | {
            "attention_bias": attention_bias,
            "attention_output_bias": attention_bias,
            "embedding_multiplier": arguments["hidden_size"] ** 0.5,
        }


ARCHITECTURE = Gemma()
