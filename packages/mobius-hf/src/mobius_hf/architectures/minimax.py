"""MiniMax-Text-01. Source: `transformers` `MiniMaxForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig, MultiplierConfig, RouterConfig
from mobius_components.config import FULL_ATTENTION, LIGHTNING_ATTENTION, SLIDING_ATTENTION
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.layer_kinds import read_layer_kinds
from mobius_hf.mixtures import MIXTRAL_RENAMES, TRAINING_FIELDS
from mobius_hf.recurrent_transforms import Ungroup, lightning_heads
from mobius_hf.stacks import GATED_STACKS
from mobius_hf.windows import Windows

_KINDS = {"full_attention": FULL_ATTENTION, "linear_attention": LIGHTNING_ATTENTION}


class MiniMax(DecoderArchitecture):
    """Lightning attention in every other layer, experts in all, and a normalised stream."""

    model_type = "minimax"
    required = (*DecoderArchitecture.required, "num_local_experts", "num_experts_per_tok")
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096 * 32,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        **dict.fromkeys(
            (
                "full_attn_alpha_factor",
                "full_attn_beta_factor",
                "linear_attn_alpha_factor",
                "linear_attn_beta_factor",
                "mlp_alpha_factor",
                "mlp_beta_factor",
            ),
            1,
        ),
    }
    # The length of a block is a matter of how lightning attention is computed.
    irrelevant = TRAINING_FIELDS | {"block_size"}
    # Fixed rates of forgetting, which the number of heads and layers decide.
    left_out = (
        *DecoderArchitecture.left_out,
        r"\.self_attn\.(?:slope_rate|query_decay|key_decay|diagonal_decay)$",
    )
    renames = (*MIXTRAL_RENAMES, *DecoderArchitecture.renames)
    stacks = GATED_STACKS
    transforms = (
        Ungroup(
            r"(.*\.self_attn)\.qkv_proj\.weight",
            (r"\1.qkv_proj.weight",),
            ((0, 1, 2),),
            lightning_heads,
        ),
    )

    def windows(self, fields: ConfigFields) -> Windows:
        """Return the window of attention, and the type of each layer."""
        window = fields.optional_integer("sliding_window")
        kinds = read_layer_kinds(fields, _KINDS, "layer_types")
        if kinds is None:
            layers = range(fields.integer("num_hidden_layers"))
            kinds = tuple(LIGHTNING_ATTENTION if n % 2 else FULL_ATTENTION for n in layers)
        if window is not None:
            slides = {FULL_ATTENTION: SLIDING_ATTENTION}
            kinds = tuple(slides.get(kind, kind) for kind in kinds)
        return Windows(window, kinds)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the experts and the factors of the stream."""
        shared = super().arguments(fields)
        lightning, attention, fed = (
            (fields.number(f"{name}_alpha_factor"), fields.number(f"{name}_beta_factor"))
            for name in ("linear_attn", "full_attn", "mlp")
        )
        return shared | {
            "layer_layout": "normed_stream",
            "moe": MixtureConfig(
                num_experts=fields.integer("num_local_experts"),
                num_experts_per_tok=fields.integer("num_experts_per_tok"),
                moe_intermediate_size=shared["intermediate_size"],
                router=RouterConfig(norm_topk_prob=True),
            ),
            "multipliers": MultiplierConfig(
                stream=tuple(
                    lightning if kind == LIGHTNING_ATTENTION else attention
                    for kind in shared["layer_types"]
                ),
                mlp_stream=fed,
            ),
        }


ARCHITECTURE = MiniMax()
