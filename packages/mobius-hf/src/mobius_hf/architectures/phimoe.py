"""Phi 3.5 MoE. Source: `transformers` `PhimoeForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig, RouterConfig
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import MIXTRAL_RENAMES, TRAINING_FIELDS
from mobius_hf.rope import read_rope, rope_object
from mobius_hf.stacks import GATED_STACKS
from mobius_hf.windows import Windows, same_for_all

_MSCALES = ("short_mscale", "long_mscale")


class PhiMoe(DecoderArchitecture):
    """LayerNorm, biases by flags, and two experts a token, chosen by SparseMixer.

    Past the length that the model was first trained for, rotary tables are made of `long_factor`,
    as Microsoft's code has it; `transformers` stays with `short_factor` there.
    """

    model_type = "phimoe"
    required = (*DecoderArchitecture.required, "num_local_experts", "num_experts_per_tok")
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 4096 * 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "lm_head_bias": False,
        "sliding_window": None,
        "router_jitter_noise": 0.01,
    }
    irrelevant = (TRAINING_FIELDS - {"router_jitter_noise"}) | {"original_max_position_embeddings"}
    renames = (
        *MIXTRAL_RENAMES,
        (r"^(?:model\.)?(layers\.\d+\.mlp)\.router\.", r"model.\1.gate."),
        *DecoderArchitecture.renames,
    )
    stacks = GATED_STACKS

    def windows(self, fields: ConfigFields) -> Windows:
        """Return `sliding_window` for every layer."""
        return same_for_all(fields, fields.optional_integer("sliding_window"))

    def rotary(self, fields: ConfigFields, windows: Windows) -> dict[str, Any]:
        """Return the rotary embedding; LongRoPE has the scale of its tables in two fields.

        Raises:
            CheckpointConfigError: if the two are not equal.
        """
        name, parameters = rope_object(fields)
        rope = read_rope(fields, set(windows.layer_types), others=_MSCALES)
        scaling = rope.scaling
        if scaling is not None and scaling["rope_type"] == "longrope":
            short, long = (parameters.get(name) for name in _MSCALES)
            if short is None or short != long:
                raise fields.unfit(name, parameters, "short_mscale equal to long_mscale")
            scaling = {**scaling, "attention_factor": float(short)}
        return {"rope_theta": rope.theta, "rope_scaling": scaling}

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the norms, the biases and the experts."""
        attention_bias = fields.flag("attention_bias")
        arguments = super().arguments(fields)
        jitter = fields.number("router_jitter_noise")
        moe = MixtureConfig(
            num_experts=fields.integer("num_local_experts"),
            num_experts_per_tok=fields.integer("num_experts_per_tok"),
            moe_intermediate_size=arguments["intermediate_size"],
            router=RouterConfig(scoring="sparsemixer", router_jitter_noise=jitter),
        )
        return arguments | {
            "norm_type": "layer",
            "attention_bias": attention_bias,
            "attention_output_bias": attention_bias,
            "lm_head_bias": fields.flag("lm_head_bias"),
            "moe": moe,
        }


ARCHITECTURE = PhiMoe()
