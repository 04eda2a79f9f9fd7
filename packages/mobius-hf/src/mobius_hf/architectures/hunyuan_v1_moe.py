"""Hunyuan with experts. Source: `transformers` `HunYuanMoEV1ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig, RouterConfig
from mobius_hf.architectures.hunyuan_v1_dense import HunYuanDenseV1
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import TRAINING_FIELDS
from mobius_hf.stacks import GATED_STACKS


class HunYuanMoEV1(HunYuanDenseV1):
    """Hunyuan with experts in every layer, beside which every token goes through a shared one."""

    model_type = "hunyuan_v1_moe"
    required = (*HunYuanDenseV1.required, "num_experts", "moe_topk")
    fixed: ClassVar[Mapping[str, object]] = {
        **HunYuanDenseV1.fixed,
        "group_limited_greedy": False,
        "moe_drop_tokens": False,
        "moe_layer_num_skipped": 0,
        "moe_random_routing_dropped_token": False,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "use_mixed_mlp_moe": True,
    }
    irrelevant = HunYuanDenseV1.irrelevant | TRAINING_FIELDS
    renames = (
        (r"^(?:model\.)?(layers\.\d+\.mlp)\.shared_mlp\.", r"model.\1.shared_experts."),
        (r"^(?:model\.)?(layers\.\d+\.mlp)\.gate\.wg\.", r"model.\1.gate."),
        *HunYuanDenseV1.renames,
    )
    stacks = GATED_STACKS

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Hunyuan and the experts."""
        arguments = super().arguments(fields)
        width = arguments["intermediate_size"]
        for name, only in (("moe_intermediate_size", width), ("num_shared_expert", 1)):
            if fields.value(name) is not None and _same_everywhere(fields, name) != only:
                raise fields.unfit(name, fields.value(name), f"{only} for each layer")
        moe = MixtureConfig(
            num_experts=_same_everywhere(fields, "num_experts"),
            num_experts_per_tok=_same_everywhere(fields, "moe_topk"),
            moe_intermediate_size=width,
            router=RouterConfig(norm_topk_prob=True, float32=True),
            shared_expert_intermediate_size=width,
        )
        return arguments | {"moe": moe}


def _same_everywhere(fields: ConfigFields, name: str) -> int:
    """Return a number that a file may give for each layer.

    Raises:
        CheckpointConfigError: if layers differ.
    """
    value = fields.value(name)
    if not isinstance(value, list | tuple):
        return fields.integer(name)
    layers = fields.integer("num_hidden_layers")
    first = value[0] if value else None
    if type(first) is not int or list(value) != [first] * layers:
        raise fields.unfit(name, value, f"an integer, or {layers} that are all the same")
    return first


ARCHITECTURE = HunYuanMoEV1()
