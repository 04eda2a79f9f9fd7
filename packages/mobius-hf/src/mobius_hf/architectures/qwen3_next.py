"""Qwen3-Next. Source: `transformers` `Qwen3NextForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig, RouterConfig
from mobius_hf.architectures.qwen3_5_text import Qwen35Text
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import SHARED_EXPERT_RENAME, TRAINING_FIELDS, every_step
from mobius_hf.recurrent_transforms import Ungroup, delta_gates, delta_projection
from mobius_hf.stacks import GATED_STACKS


class Qwen3Next(Qwen35Text):
    """Qwen3.5 with experts, and with the projections of the delta rule stored by key heads."""

    model_type = "qwen3_next"
    required = (*Qwen35Text.required, "num_experts", "num_experts_per_tok")
    defaults: ClassVar[Mapping[str, Any]] = {
        **Qwen35Text.defaults,
        "num_key_value_heads": 2,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "norm_topk_prob": True,
    }
    fixed: ClassVar[Mapping[str, object]] = {**Qwen35Text.fixed, "use_sliding_window": False}
    irrelevant = TRAINING_FIELDS
    stacks = GATED_STACKS
    renames = (
        SHARED_EXPERT_RENAME,
        *Qwen35Text.renames,
    )
    transforms = (
        Ungroup(
            r"(.*\.linear_attn)\.in_proj_qkvz\.weight",
            (r"\1.in_proj_qkv.weight", r"\1.in_proj_z.weight"),
            ((0, 1, 2), (3,)),
            delta_projection,
        ),
        Ungroup(
            r"(.*\.linear_attn)\.in_proj_ba\.weight",
            (r"\1.in_proj_b.weight", r"\1.in_proj_a.weight"),
            ((0,), (1,)),
            delta_gates,
        ),
        *Qwen35Text.transforms,
    )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Qwen3.5 and the experts."""
        moe = MixtureConfig(
            num_experts=fields.integer("num_experts"),
            num_experts_per_tok=fields.integer("num_experts_per_tok"),
            moe_intermediate_size=fields.integer("moe_intermediate_size"),
            sparse_layers=every_step(fields),
            router=RouterConfig(norm_topk_prob=fields.flag("norm_topk_prob")),
            shared_expert_intermediate_size=fields.integer("shared_expert_intermediate_size"),
            shared_expert_gate=True,
        )
        return super().arguments(fields) | {"moe": moe}


ARCHITECTURE = Qwen3Next()
