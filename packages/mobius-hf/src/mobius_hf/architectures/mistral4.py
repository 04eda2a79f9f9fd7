"""Mistral Small 4. Source: `transformers` `Mistral4ForCausalLM`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig, RouterConfig
from mobius_components.query_temperature_config import QueryTemperatureConfig
from mobius_hf.architectures.deepseek_v3 import DeepseekV3
from mobius_hf.architectures.ministral3 import TEMPERATURE_FIELDS, read_temperature
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import deepseek_mixture, dense_before
from mobius_hf.rope import read_rope
from mobius_hf.windows import Windows


class Mistral4(DeepseekV3):
    """DeepSeek-V3's latent attention with queries that grow, and experts chosen by softmax."""

    model_type = "mistral4"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DeepseekV3.defaults,
        "max_position_embeddings": 1048576,
        "q_lora_rank": 1024,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 0,
        "routed_scaling_factor": 1.0,
    }
    fixed: ClassVar[Mapping[str, object]] = {}

    def rotary(self, fields: ConfigFields, windows: Windows) -> dict[str, Any]:
        """Return the rotary embedding of the rotating part, and how queries grow.

        Raises:
            CheckpointConfigError: if another part rotates than `qk_rope_head_dim`.
        """
        rope = read_rope(fields, set(windows.layer_types), TEMPERATURE_FIELDS)
        latent = self.latent(fields)
        part = latent.qk_rope_head_dim / latent.qk_head_dim
        if rope.partial_rotary_factor not in (1.0, part):
            found = rope.partial_rotary_factor
            raise fields.unfit("partial_rotary_factor", found, f"{part}, of qk_rope_head_dim")
        beta, length = read_temperature(fields)
        return {
            "rope_theta": rope.theta,
            "rope_scaling": rope.scaling,
            "rope_interleaved": self.interleaved(fields),
            "query_temperature": QueryTemperatureConfig(beta=beta, length=length),
        }

    def mixture(self, fields: ConfigFields) -> MixtureConfig:
        """Return the experts, whose scores are a softmax of all logits."""
        moe = deepseek_mixture(fields, dense_before(fields))
        router = RouterConfig(
            norm_topk_prob=moe.router.norm_topk_prob,
            norm_topk_epsilon=moe.router.norm_topk_epsilon,
            n_group=moe.router.n_group,
            topk_group=moe.router.topk_group,
            group_score="sum_of_two",
            routed_scaling_factor=moe.router.routed_scaling_factor,
        )
        return dataclasses.replace(moe, router=router)


ARCHITECTURE = Mistral4()
