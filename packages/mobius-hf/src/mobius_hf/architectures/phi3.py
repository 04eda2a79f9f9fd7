"""Phi 3, 3.5 and 4-mini. Source: `transformers` `Phi3ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.transforms import Split, gate_up_sizes, qkv_sizes
from mobius_hf.windows import Windows, same_for_all


class Phi3(DecoderArchitecture):
    """Queries, keys and values are stored as one, and so are the gate and its partner."""

    model_type = "phi3"
    partial_rotary = True
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    }
    fixed: ClassVar[Mapping[str, object]] = {"attention_bias": False}
    irrelevant = frozenset({"original_max_position_embeddings"})
    transforms = (
        Split(
            r"(.*\.self_attn)\.qkv_proj\.weight",
            (r"\1.q_proj.weight", r"\1.k_proj.weight", r"\1.v_proj.weight"),
            qkv_sizes,
        ),
        Split(
            r"(.*\.mlp)\.gate_up_proj\.weight",
            (r"\1.gate_proj.weight", r"\1.up_proj.weight"),
            gate_up_sizes,
        ),
    )

    def windows(self, fields: ConfigFields) -> Windows:
        """Return `sliding_window` for every layer."""
        return same_for_all(fields, fields.optional_integer("sliding_window"))


ARCHITECTURE = Phi3()
