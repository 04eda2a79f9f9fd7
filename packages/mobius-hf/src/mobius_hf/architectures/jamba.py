"""Jamba. Source: `transformers` `JambaForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MambaConfig, MixtureConfig
from mobius_components.config import FULL_ATTENTION, MAMBA
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import TRAINING_FIELDS
from mobius_hf.stacks import GATED_STACKS
from mobius_hf.state_spaces import IMPLEMENTATION_FIELDS, read_rank
from mobius_hf.windows import Windows

_LAYER = r"^(?:model\.)?(layers\.\d+)\."


class Jamba(DecoderArchitecture):
    """Mamba in most layers, attention without positions in some; experts in every other layer."""

    model_type = "jamba"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "num_key_value_heads": 8,
        "max_position_embeddings": 262144,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": "auto",
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
    }
    fixed: ClassVar[Mapping[str, object]] = {"sliding_window": None, "mamba_inner_layernorms": True}
    irrelevant = (
        TRAINING_FIELDS | IMPLEMENTATION_FIELDS | {"calc_logits_for_entire_prompt", "n_ctx"}
    )
    stacks = GATED_STACKS
    renames = (
        (rf"{_LAYER}feed_forward\.router\.", r"model.\1.mlp.gate."),
        (rf"{_LAYER}feed_forward\.", r"model.\1.mlp."),
        (rf"{_LAYER}pre_ff_layernorm\.", r"model.\1.post_attention_layernorm."),
        (r"^(?:model\.)?final_layernorm\.", "model.norm."),
        *DecoderArchitecture.renames,
    )

    def windows(self, fields: ConfigFields) -> Windows:
        """Return no window, and the type of each layer."""
        attending = _turns(fields, "attn_layer")
        return Windows(None, tuple(FULL_ATTENTION if each else MAMBA for each in attending))

    def rotary(self, fields: ConfigFields, windows: Windows) -> dict[str, Any]:
        """Return that nothing rotates."""
        del fields, windows
        return {"rope_theta": None}

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the state space and the experts."""
        shared = super().arguments(fields)
        mamba = MambaConfig(
            channels=fields.integer("mamba_expand") * shared["hidden_size"],
            state_size=fields.integer("mamba_d_state"),
            time_step_rank=read_rank(fields, "mamba_dt_rank"),
            conv_taps=fields.integer("mamba_d_conv"),
            conv_bias=fields.flag("mamba_conv_bias"),
            projection_bias=fields.flag("mamba_proj_bias"),
            activation=shared["hidden_act"],
            parameter_norm="rms",
            parameter_norm_eps=shared["rms_norm_eps"],
        )
        experts = fields.integer("num_experts")
        sparse, moe = _turns(fields, "expert_layer"), None
        chosen = fields.integer("num_experts_per_tok")
        if experts > 1:
            moe = MixtureConfig(
                num_experts=experts,
                num_experts_per_tok=chosen,
                moe_intermediate_size=shared["intermediate_size"],
                sparse_layers=sparse,
            )
        return shared | {"mamba": mamba, "moe": moe}


def _turns(fields: ConfigFields, name: str) -> tuple[bool, ...]:
    """Return which layers have something that comes every `period` layers from `offset` on."""
    period, offset = fields.integer(f"{name}_period"), fields.integer(f"{name}_offset")
    if not 0 <= offset < period:
        raise fields.unfit(f"{name}_offset", offset, f"a number below {name}_period, {period}")
    return tuple(n % period == offset for n in range(fields.integer("num_hidden_layers")))


ARCHITECTURE = Jamba()
