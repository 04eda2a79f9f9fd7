"""Mellum 2. Source: `transformers` `MellumForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig, RouterConfig
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import TRAINING_FIELDS, sparse_by_type
from mobius_hf.rope import read_ropes, sliding_beside_full
from mobius_hf.stacks import GATED_STACKS
from mobius_hf.windows import Windows, by_layer_types


class Mellum(DecoderArchitecture):
    """Qwen3's attention and experts, with layers that slide and rotate in a way of their own."""

    model_type = "mellum"
    required = (
        *DecoderArchitecture.required,
        "num_experts|num_local_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "sliding_window": 1024,
        "attention_bias": False,
        "norm_topk_prob": True,
    }
    # Layers that predict further tokens are not built.
    irrelevant = TRAINING_FIELDS | {"mtp_layer_types", "mtp_mlp_layer_types", "num_mtp_layers"}
    left_out = (*DecoderArchitecture.left_out, r"^mtp\.")
    stacks = GATED_STACKS

    def windows(self, fields: ConfigFields) -> Windows:
        """Return the window of the sliding layers."""
        return by_layer_types(fields)

    def rotary(self, fields: ConfigFields, windows: Windows) -> dict[str, Any]:
        """Return the rotary embedding of each type of layer."""
        return sliding_beside_full(read_ropes(fields, set(windows.layer_types)))

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the norms, the biases and the experts."""
        attention_bias = fields.flag("attention_bias")
        moe = MixtureConfig(
            num_experts=fields.first_integer("num_experts", "num_local_experts"),
            num_experts_per_tok=fields.integer("num_experts_per_tok"),
            moe_intermediate_size=fields.integer("moe_intermediate_size"),
            sparse_layers=sparse_by_type(fields),
            router=RouterConfig(norm_topk_prob=fields.flag("norm_topk_prob")),
        )
        return super().arguments(fields) | {
            "qk_norm": "head",
            "attention_bias": attention_bias,
            "attention_output_bias": attention_bias,
            "moe": moe,
        }


ARCHITECTURE = Mellum()
