"""Hunyuan, dense. Source: `transformers` `HunYuanDenseV1ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.windows import Windows


class HunYuanDenseV1(DecoderArchitecture):
    """Queries and keys are normalised after they rotate; `alpha` stretches the rotary base."""

    model_type = "hunyuan_v1_dense"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
    }
    fixed: ClassVar[Mapping[str, object]] = {
        "mlp_bias": False,
        "position_embedding_xdrope": False,
        "use_cla": False,
        "use_qk_norm": True,
        "use_rotary_pos_emb": True,
    }
    irrelevant = frozenset({"cla_share_factor", "eod_token_id"})
    renames = (
        (r"^(?:model\.)?(layers\.\d+\.self_attn)\.query_layernorm\.", r"model.\1.q_norm."),
        (r"^(?:model\.)?(layers\.\d+\.self_attn)\.key_layernorm\.", r"model.\1.k_norm."),
        *DecoderArchitecture.renames,
    )

    def rotary(self, fields: ConfigFields, windows: Windows) -> dict[str, Any]:
        """Return the rotary embedding; with `alpha`, nothing else of the scaling counts."""
        parameters = fields.value("rope_parameters") or fields.value("rope_scaling") or {}
        alpha = parameters.get("alpha")
        kind = parameters.get("rope_type", parameters.get("type"))
        if not alpha or kind != "dynamic":
            return super().rotary(fields, windows)
        theta = parameters.get("rope_theta") or fields.number("rope_theta")
        fields.value("rope_theta")
        size = fields.integer("head_dim")
        return {"rope_theta": theta * alpha ** (size / (size - 2))}

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the norms and the biases."""
        attention_bias = fields.flag("attention_bias")
        return super().arguments(fields) | {
            "qk_norm": "head",
            "qk_norm_after_rotary": True,
            "attention_bias": attention_bias,
            "attention_output_bias": attention_bias,
        }


ARCHITECTURE = HunYuanDenseV1()
