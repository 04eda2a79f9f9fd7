"""Command A+. Source: `transformers` `Cohere2MoeForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig, RouterConfig
from mobius_components.config import SLIDING_ATTENTION
from mobius_hf.architectures.cohere2 import Cohere2
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import TRAINING_FIELDS, sparse_by_type
from mobius_hf.stacks import GATED_STACKS

# What routed and shared experts count, by `shared_expert_combination_strategy`.
_SHARES = {"sum": 1.0, "average": 0.5}


class Cohere2Moe(Cohere2):
    """Command A with experts; dense layers before them may rotate without a window."""

    model_type = "cohere2_moe"
    required = (*Cohere2.required, "num_experts", "num_experts_per_tok")
    defaults: ClassVar[Mapping[str, Any]] = {
        **Cohere2.defaults,
        "head_dim": 128,
        "num_shared_experts": 0,
        "shared_expert_combination_strategy": "average",
        "expert_selection_fn": "softmax",
        "norm_topk_prob": True,
        "prefix_dense_sliding_window_pattern": 1,
    }
    irrelevant = Cohere2.irrelevant | TRAINING_FIELDS
    stacks = GATED_STACKS

    def feed_forward_size(self, fields: ConfigFields) -> int:
        """Return the width of the dense layers."""
        return fields.integer_or(
            "prefix_dense_intermediate_size", fields.integer("intermediate_size")
        )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Command A, the norm, and the experts."""
        arguments, sparse = super().arguments(fields), sparse_by_type(fields)
        fields.value("first_k_dense_replace")  # the layer types say what it would
        rotates_always = fields.integer("prefix_dense_sliding_window_pattern") == 1
        if len(sparse) != len(arguments["layer_types"]):
            needed = f"{len(arguments['layer_types'])} entries, one for each layer"
            raise fields.unfit("mlp_layer_types", fields.value("mlp_layer_types"), needed)
        rms = fields.value("rms_norm_eps") is not None
        return arguments | {
            **({"norm_type": "rms", "rms_norm_eps": fields.number("rms_norm_eps")} if rms else {}),
            "rope_layers": tuple(
                kind == SLIDING_ATTENTION or (rotates_always and not has_experts)
                for kind, has_experts in zip(arguments["layer_types"], sparse, strict=True)
            ),
            "moe": _mixture(fields, sparse),
        }


def _mixture(fields: ConfigFields, sparse: tuple[bool, ...]) -> MixtureConfig:
    inner, shared = fields.integer("intermediate_size"), fields.integer("num_shared_experts")
    choice, strategy = fields.text("expert_selection_fn"), "shared_expert_combination_strategy"
    if choice not in ("softmax", "sigmoid"):
        raise fields.unfit("expert_selection_fn", choice, "softmax or sigmoid")
    if fields.text(strategy) not in _SHARES:
        raise fields.unfit(strategy, fields.value(strategy), " or ".join(_SHARES))
    share = _SHARES[fields.value(strategy)] if shared else 1.0
    normed = fields.flag("norm_topk_prob")
    return MixtureConfig(
        num_experts=fields.integer("num_experts"),
        num_experts_per_tok=fields.integer("num_experts_per_tok"),
        moe_intermediate_size=inner,
        sparse_layers=sparse,
        router=RouterConfig(
            scoring=choice,
            # The softmax is that of the chosen logits, whose sum is one.
            norm_topk_prob=normed or choice == "softmax",
            routed_scaling_factor=share,
        ),
        shared_expert_intermediate_size=inner * shared if shared else None,
        shared_expert_scale=share,
    )


ARCHITECTURE = Cohere2Moe()
