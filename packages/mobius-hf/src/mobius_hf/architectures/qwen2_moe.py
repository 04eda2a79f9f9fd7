"""Qwen 1.5 and 2 with experts. Source: `transformers` `Qwen2MoeForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig, RouterConfig
from mobius_components.config import FULL_ATTENTION, SLIDING_ATTENTION
from mobius_hf.architectures.qwen2 import Qwen2
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import SHARED_EXPERT_RENAME, TRAINING_FIELDS, every_step
from mobius_hf.stacks import GATED_STACKS
from mobius_hf.windows import Windows, by_layer_types


class Qwen2Moe(Qwen2):
    """Qwen2 with experts in some layers, beside which every token goes through a gated one."""

    model_type = "qwen2_moe"
    required = (*Qwen2.required, "num_experts|num_local_experts", "num_experts_per_tok")
    defaults: ClassVar[Mapping[str, Any]] = {
        **Qwen2.defaults,
        "num_key_value_heads": 16,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "norm_topk_prob": False,
        "qkv_bias": True,
    }
    fixed: ClassVar[Mapping[str, object]] = {}
    irrelevant = TRAINING_FIELDS
    renames = (
        SHARED_EXPERT_RENAME,
        *Qwen2.renames,
    )
    stacks = GATED_STACKS

    def windows(self, fields: ConfigFields) -> Windows:
        """Return the windows that `use_sliding_window` allows: every other of the first layers.

        Source: `transformers.Qwen2MoeConfig.__post_init__`.
        """
        layers = fields.integer("num_hidden_layers")
        slides, last = fields.flag("use_sliding_window"), fields.integer("max_window_layers")
        if fields.value("layer_types") is not None:
            return by_layer_types(fields)
        kinds = [
            SLIDING_ATTENTION if slides and layer % 2 == 0 and layer < last else FULL_ATTENTION
            for layer in range(layers)
        ]
        window = fields.optional_integer("sliding_window")
        return Windows(window if slides else None, tuple(kinds))

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Qwen2, its bias and the experts."""
        moe = MixtureConfig(
            num_experts=fields.first_integer("num_experts", "num_local_experts"),
            num_experts_per_tok=fields.integer("num_experts_per_tok"),
            moe_intermediate_size=fields.integer("moe_intermediate_size"),
            sparse_layers=every_step(fields),
            router=RouterConfig(norm_topk_prob=fields.flag("norm_topk_prob")),
            shared_expert_intermediate_size=fields.integer("shared_expert_intermediate_size"),
            shared_expert_gate=True,
        )
        return super().arguments(fields) | {
            "attention_bias": fields.flag("qkv_bias"),
            "moe": moe,
        }


ARCHITECTURE = Qwen2Moe()
