"""Falcon-H1. Source: `transformers` `FalconH1ForCausalLM`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import Mamba2Config, MultiplierConfig
from mobius_components.config import ATTENTION_BESIDE_MAMBA2
from mobius_hf.architectures.llama import Llama
from mobius_hf.config import ConfigFields
from mobius_hf.state_spaces import (
    IMPLEMENTATION_FIELDS,
    MAMBA2_DEFAULTS,
    TRAINING_FIELDS,
    read_mamba2,
)
from mobius_hf.windows import Windows

_LAYER = r"^(?:model\.)?(layers\.\d+)\."
_FACTORS = (
    "lm_head_multiplier",
    "embedding_multiplier",
    "key_multiplier",
    "attention_in_multiplier",
    "attention_out_multiplier",
    "ssm_in_multiplier",
    "ssm_out_multiplier",
)


class FalconH1(Llama):
    """Attention and Mamba 2 side by side in every layer, and factors everywhere (muP)."""

    model_type = "falcon_h1"
    defaults: ClassVar[Mapping[str, Any]] = {
        **Llama.defaults,
        **MAMBA2_DEFAULTS,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "mamba_d_ssm": 1024,
        "mamba_norm_before_gate": True,
        "mamba_rms_norm": False,
        "projectors_bias": False,
        **dict.fromkeys(_FACTORS, 1.0),
    }
    fixed: ClassVar[Mapping[str, object]] = {}
    irrelevant = (
        TRAINING_FIELDS
        | IMPLEMENTATION_FIELDS
        | {"attn_layer_indices", "mamba_use_mlp", "mlp_expansion_factor"}
    )
    renames = (
        (rf"{_LAYER}(mamba|self_attn)\.", r"model.\1.mixer.\2."),
        (rf"{_LAYER}feed_forward\.", r"model.\1.mlp."),
        (rf"{_LAYER}pre_ff_layernorm\.", r"model.\1.post_attention_layernorm."),
        (r"^(?:model\.)?final_layernorm\.", "model.norm."),
        *Llama.renames,
    )

    def windows(self, fields: ConfigFields) -> Windows:
        """Return no window, and one type for all layers."""
        return Windows(None, (ATTENTION_BESIDE_MAMBA2,) * fields.integer("num_hidden_layers"))

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Llama, the state space and the factors."""
        factors = {name.removesuffix("_multiplier"): fields.number(name) for name in _FACTORS}
        gate, down = fields.numbers("mlp_multipliers", 2)
        shared = super().arguments(fields)
        size = shared["head_dim"] or fields.quotient("hidden_size", "num_attention_heads")
        return shared | {
            "mamba2": self._mamba2(fields, factors["ssm_in"]),
            "embedding_multiplier": factors["embedding"],
            "logits_scaling": fields.reciprocal("lm_head_multiplier"),
            # Keys count in scores alone.
            "attention_scale": factors["key"] * size**-0.5,
            "multipliers": MultiplierConfig(
                attention_input=factors["attention_in"],
                attention_output=factors["attention_out"],
                mamba2_output=factors["ssm_out"],
                mlp_gate=gate,
                mlp_output=down,
            ),
        }

    def _mamba2(self, fields: ConfigFields, factor: float) -> Mamba2Config:
        norm = None
        before_gate = fields.flag("mamba_norm_before_gate")
        if fields.flag("mamba_rms_norm"):
            norm = "before_gate" if before_gate else "after_gate"
        channels = fields.optional_integer("mamba_d_ssm")
        return dataclasses.replace(
            read_mamba2(fields, channels=channels),
            output_bias=fields.flag("projectors_bias"),
            gated_norm=norm,
            input_multiplier=factor,
            section_multipliers=fields.numbers("ssm_multipliers", 5),
        )


ARCHITECTURE = FalconH1()
