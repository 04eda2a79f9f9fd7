"""DeepSeek V3 and R1. Source: `transformers` `DeepseekV3ForCausalLM`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig
from mobius_components.config import FULL_ATTENTION, LATENT_ATTENTION
from mobius_components.latent_attention_config import LatentAttentionConfig
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import TRAINING_FIELDS, deepseek_mixture, dense_before
from mobius_hf.rope import read_rope
from mobius_hf.stacks import GATED_STACKS, Stack
from mobius_hf.windows import Windows

# Without a query rank, queries are made of the stream.
LATENT_FIELDS = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")


class DeepseekV3(DecoderArchitecture):
    """Latent attention, and experts that are chosen by groups and a bias.

    Checkpoints hold a layer more than `num_hidden_layers`, which predicts one token further on.
    """

    model_type = "deepseek_v3"
    required = (
        *DecoderArchitecture.required,
        "n_routed_experts|num_local_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        *LATENT_FIELDS,
    )
    further_layers = True
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 4096,
        "q_lora_rank": 1536,
        "attention_bias": False,
        "rope_interleave": True,
        "n_shared_experts": 1,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 3,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
    }
    # Older files say so what transformers takes for granted.
    fixed: ClassVar[Mapping[str, object]] = {
        "moe_layer_freq": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    }
    # `head_dim` is the rotating part, `qk_head_dim` the whole, both of which follow.
    irrelevant = TRAINING_FIELDS | {
        "aux_loss_alpha",
        "ep_size",
        "head_dim",
        "num_mtp_layers",
        "num_nextn_predict_layers",
        "qk_head_dim",
        "seq_aux",
    }
    stacks: ClassVar[tuple[Stack, ...]] = GATED_STACKS

    def rotary(self, fields: ConfigFields, windows: Windows) -> dict[str, Any]:
        """Return the rotary embedding of the rotating part of a head."""
        rope = read_rope(fields, set(windows.layer_types))
        return {
            "rope_theta": rope.theta,
            "rope_scaling": rope.scaling,
            "rope_interleaved": self.interleaved(fields),
        }

    def interleaved(self, fields: ConfigFields) -> bool:
        """Return whether neighbours of the rotating part are rotated together."""
        return fields.flag("rope_interleave")

    def latent(self, fields: ConfigFields) -> LatentAttentionConfig:
        """Return the ranks and widths of attention."""
        return LatentAttentionConfig(
            q_lora_rank=fields.optional_integer("q_lora_rank"),
            kv_lora_rank=fields.integer("kv_lora_rank"),
            qk_rope_head_dim=fields.integer("qk_rope_head_dim"),
            qk_nope_head_dim=fields.integer("qk_nope_head_dim"),
            v_head_dim=fields.integer("v_head_dim"),
        )

    def mixture(self, fields: ConfigFields) -> MixtureConfig | None:
        """Return the experts."""
        return deepseek_mixture(fields, dense_before(fields))

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, those of attention, and the experts."""
        arguments, latent = super().arguments(fields), self.latent(fields)
        heads = arguments["num_attention_heads"]
        if arguments["num_key_value_heads"] not in (None, heads):
            found = arguments["num_key_value_heads"]
            raise fields.unfit("num_key_value_heads", found, f"num_attention_heads, {heads}")
        bias = fields.flag("attention_bias")
        kinds = {FULL_ATTENTION: LATENT_ATTENTION}
        return arguments | {
            "head_dim": latent.qk_head_dim,
            "latent_attention": latent,
            "layer_types": tuple(kinds[kind] for kind in arguments["layer_types"]),
            "attention_scale": latent.qk_head_dim**-0.5 * score_factor(arguments["rope_scaling"]),
            "attention_bias": bias,
            "attention_output_bias": bias,
            "moe": self.mixture(fields),
        }


def score_factor(scaling: Mapping[str, Any] | None) -> float:
    """Return the factor of the scores that goes with a rotary scaling.

    Source: `transformers` `yarn_apply_mscale` of `modeling_deepseek_v3`.
    """
    weight = (scaling or {}).get("mscale_all_dim")
    factor = (scaling or {}).get("factor")
    if not weight or factor is None or factor <= 1:
        return 1.0
    return (0.1 * float(weight) * math.log(factor) + 1.0) ** 2


ARCHITECTURE = DeepseekV3()
