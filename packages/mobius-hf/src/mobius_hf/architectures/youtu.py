"""Youtu-LLM. Source: `transformers` `YoutuForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.architectures.deepseek_v3 import LATENT_FIELDS, DeepseekV3
from mobius_hf.config import ConfigFields
from mobius_hf.stacks import Stack


class Youtu(DeepseekV3):
    """DeepSeek's attention without experts."""

    model_type = "youtu"
    required = (*DecoderArchitecture.required, *LATENT_FIELDS)
    further_layers = False
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 16,
        "q_lora_rank": 1536,
        "attention_bias": False,
        "rope_interleave": True,
        "tie_word_embeddings": True,
    }
    fixed: ClassVar[Mapping[str, object]] = {"mlp_bias": False}
    irrelevant = frozenset({"embedding_initializer_range", "head_dim", "qk_head_dim"})
    stacks: ClassVar[tuple[Stack, ...]] = ()

    def mixture(self, fields: ConfigFields) -> MixtureConfig | None:
        """Return no experts."""
        del fields
        return None


ARCHITECTURE = Youtu()
