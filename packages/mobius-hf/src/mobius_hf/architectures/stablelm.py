"""StableLM 3B and 2. Source: `transformers` `StableLmForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields


class StableLm(DecoderArchitecture):
    """Layer norms; a quarter of each head rotates; attention beside feed-forward, or before it."""

    model_type = "stablelm"
    partial_rotary = True
    epsilon_field = "layer_norm_eps"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "num_key_value_heads": 32,
        "max_position_embeddings": 4096,
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.25,
        "use_qkv_bias": False,
        "qk_layernorm": False,
        "use_parallel_residual": False,
    }
    renames = (
        (r"^(?:model\.)?(layers\.\d+\.self_attn)\.([qk])_layernorm\.", r"model.\1.\2_norm."),
        *DecoderArchitecture.renames,
    )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the layout, the norms and the bias."""
        parallel = fields.flag("use_parallel_residual")
        return super().arguments(fields) | {
            "norm_type": "layer",
            "layer_layout": "parallel" if parallel else "pre_norm",
            "qk_norm": "each_head" if fields.flag("qk_layernorm") else None,
            "qk_norm_type": "layer_no_bias",
            "attention_bias": fields.flag("use_qkv_bias"),
        }


ARCHITECTURE = StableLm()
