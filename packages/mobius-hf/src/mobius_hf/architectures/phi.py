"""Phi 1, 1.5 and 2. Source: `transformers` `PhiForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields


class Phi(DecoderArchitecture):
    """Attention and feed-forward side by side after one layer norm; biases everywhere."""

    model_type = "phi"
    partial_rotary = True
    epsilon_field = "layer_norm_eps"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "hidden_act": "gelu_new",
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "qk_layernorm": False,
    }
    renames = (
        (r"^(?:model\.)?(layers\.\d+\.self_attn)\.([qk])_layernorm\.", r"model.\1.\2_norm."),
        (r"^(?:model\.)?(layers\.\d+\.self_attn)\.dense\.", r"model.\1.o_proj."),
        (r"^(?:model\.)?(layers\.\d+\.mlp)\.fc1\.", r"model.\1.up_proj."),
        (r"^(?:model\.)?(layers\.\d+\.mlp)\.fc2\.", r"model.\1.down_proj."),
        (r"^(?:model\.)?final_layernorm\.", "model.norm."),
        *DecoderArchitecture.renames,
    )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the layout, the norms and the biases."""
        return super().arguments(fields) | {
            "norm_type": "layer",
            "layer_layout": "parallel",
            "mlp_gated": False,
            "attention_bias": True,
            "attention_output_bias": True,
            "mlp_bias": True,
            "lm_head_bias": True,
            "qk_norm": "head" if fields.flag("qk_layernorm") else None,
            "qk_norm_type": "layer",
        }


ARCHITECTURE = Phi()
