"""Qwen3 with experts. Source: `transformers` `Qwen3MoeForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig, RouterConfig
from mobius_hf.architectures.qwen3 import Qwen3
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import TRAINING_FIELDS, every_step
from mobius_hf.stacks import GATED_STACKS
from mobius_hf.windows import Windows, same_for_all


class Qwen3Moe(Qwen3):
    """Qwen3 with experts in some layers; all layers slide, or none."""

    model_type = "qwen3_moe"
    required = (*Qwen3.required, "num_experts|num_local_experts", "num_experts_per_tok")
    defaults: ClassVar[Mapping[str, Any]] = {
        **{name: value for name, value in Qwen3.defaults.items() if name != "head_dim"},
        "num_key_value_heads": 4,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 768,
        "norm_topk_prob": False,
    }
    irrelevant = TRAINING_FIELDS | {"max_window_layers"}
    stacks = GATED_STACKS

    def windows(self, fields: ConfigFields) -> Windows:
        """Return `sliding_window` for every layer, if `use_sliding_window` is set."""
        window = fields.optional_integer("sliding_window")
        return same_for_all(fields, window if fields.flag("use_sliding_window") else None)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Qwen3 and the experts."""
        moe = MixtureConfig(
            num_experts=fields.first_integer("num_experts", "num_local_experts"),
            num_experts_per_tok=fields.integer("num_experts_per_tok"),
            moe_intermediate_size=fields.integer("moe_intermediate_size"),
            sparse_layers=every_step(fields),
            router=RouterConfig(norm_topk_prob=fields.flag("norm_topk_prob")),
        )
        return super().arguments(fields) | {"moe": moe}


ARCHITECTURE = Qwen3Moe()
