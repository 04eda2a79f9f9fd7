"""Persimmon and Fuyu's text part. Source: `transformers` `PersimmonForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.transforms import SplitGroups


class Persimmon(DecoderArchitecture):
    """Layer norms, of query and key heads too; squared ReLU; biases; half of each head rotates."""

    model_type = "persimmon"
    partial_rotary = True
    epsilon_field = "layer_norm_eps"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "hidden_act": "relu2",
        "max_position_embeddings": 16384,
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "qk_layernorm": True,
    }
    renames = (
        (r"^(?:model\.)?(layers\.\d+\.self_attn)\.([qk])_layernorm\.", r"model.\1.\2_norm."),
        (r"^(?:model\.)?(layers\.\d+\.self_attn)\.dense\.", r"model.\1.o_proj."),
        (r"^(?:model\.)?(layers\.\d+\.mlp)\.dense_h_to_4h\.", r"model.\1.up_proj."),
        (r"^(?:model\.)?(layers\.\d+\.mlp)\.dense_4h_to_h\.", r"model.\1.down_proj."),
        (r"^(?:model\.)?final_layernorm\.", "model.norm."),
        *DecoderArchitecture.renames,
    )
    transforms = (
        SplitGroups(
            r"(.*\.self_attn)\.query_key_value\.(.*)",
            (r"\1.q_proj.\2", r"\1.k_proj.\2", r"\1.v_proj.\2"),
        ),
    )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the norms and the biases."""
        return super().arguments(fields) | {
            "norm_type": "layer",
            "qk_norm": "head" if fields.flag("qk_layernorm") else None,
            "qk_norm_type": "layer",
            "mlp_gated": False,
            "attention_bias": True,
            "attention_output_bias": True,
            "mlp_bias": True,
        }


ARCHITECTURE = Persimmon()
