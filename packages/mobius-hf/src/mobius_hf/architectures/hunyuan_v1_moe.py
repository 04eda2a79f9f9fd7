"""Hunyuan with experts. Source: `transformers` `HunYuanMoEV1ForCausalLM`."""

from __future__ import annotations

from typing import Any

from mobius_components import MixtureConfig, RouterConfig
from mobius_hf.architectures.hunyuan_v1_dense import HunYuanDenseV1
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import TRAINING_FIELDS
from mobius_hf.stacks import GATED_STACKS


class HunYuanMoEV1(HunYuanDenseV1):
    """Hunyuan with experts in every layer, beside which every token goes through a shared one."""

    model_type = "hunyuan_v1_moe"
    required = (*HunYuanDenseV1.required, "num_experts", "moe_topk")
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
    if isinstance(value, list | tuple):
        if len(set(value)) != 1 or not isinstance(value[0], int):
            raise fields.unfit(name, value, "the same number for each layer")
        return int(value[0])
    return fields.integer(name)


ARCHITECTURE = HunYuanMoEV1()
