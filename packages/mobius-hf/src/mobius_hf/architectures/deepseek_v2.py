"""DeepSeek V2 and V2-Lite. Source: `transformers` `DeepseekV2ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig, RouterConfig
from mobius_hf.architectures.deepseek_v3 import DeepseekV3
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import dense_before


class DeepseekV2(DeepseekV3):
    """Experts are chosen by softmax, in groups that count by their best one, or among all."""

    model_type = "deepseek_v2"
    further_layers = False
    defaults: ClassVar[Mapping[str, Any]] = {
        **DeepseekV3.defaults,
        "max_position_embeddings": 2048,
        "mlp_bias": False,
        "n_shared_experts": 2,
        "n_group": None,
        "topk_group": None,
        "topk_method": "greedy",
        "first_k_dense_replace": 0,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    }
    # transformers never divides the shares by their sum, whatever the file says.
    fixed: ClassVar[Mapping[str, object]] = {"moe_layer_freq": 1, "scoring_func": "softmax"}
    irrelevant = DeepseekV3.irrelevant | {"norm_topk_prob"}

    def interleaved(self, fields: ConfigFields) -> bool:
        """Return whether neighbours are rotated together, which they always are."""
        del fields
        return True

    def mixture(self, fields: ConfigFields) -> MixtureConfig:
        """Return the experts."""
        inner, method = fields.integer("moe_intermediate_size"), fields.text("topk_method")
        if method not in ("greedy", "group_limited_greedy"):
            raise fields.unfit("topk_method", method, "'greedy' or 'group_limited_greedy'")
        groups, kept = fields.value("n_group"), fields.value("topk_group")
        limited = method == "group_limited_greedy"
        return MixtureConfig(
            num_experts=fields.first_integer("n_routed_experts", "num_experts"),
            num_experts_per_tok=fields.integer("num_experts_per_tok"),
            moe_intermediate_size=inner,
            sparse_layers=dense_before(fields),
            router=RouterConfig(
                n_group=groups if limited else 1,
                topk_group=kept if limited else 1,
                routed_scaling_factor=fields.number("routed_scaling_factor"),
                float32=True,
            ),
            shared_expert_intermediate_size=inner * fields.integer("n_shared_experts"),
        )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of DeepSeek V3 and the biases."""
        return super().arguments(fields) | {"mlp_bias": fields.flag("mlp_bias")}


ARCHITECTURE = DeepseekV2()
