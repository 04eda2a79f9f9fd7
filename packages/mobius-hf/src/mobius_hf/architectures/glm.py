"""GLM 4 of 2024. Source: `transformers` `GlmForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.transforms import Split, gate_up_sizes


class Glm(DecoderArchitecture):
    """Half of each head rotates, in neighbouring pairs; the gate and its partner are one tensor."""

    model_type = "glm"
    partial_rotary = True
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1.5625e-07,
        "attention_bias": True,
    }
    transforms = (
        Split(
            r"(.*\.mlp)\.gate_up_proj\.weight",
            (r"\1.gate_proj.weight", r"\1.up_proj.weight"),
            gate_up_sizes,
        ),
    )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the bias and the kind of rotation."""
        return super().arguments(fields) | {
            "attention_bias": fields.flag("attention_bias"),
            "rope_interleaved": True,
        }


ARCHITECTURE = Glm()
