"""LFM2 with experts. Source: `transformers` `Lfm2MoeForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig, RouterConfig
from mobius_hf.architectures.lfm2 import Lfm2
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import TRAINING_FIELDS, dense_before
from mobius_hf.stacks import GATED_STACKS

_LAYER = r"^(?:model\.)?(layers\.\d+)\."


class Lfm2Moe(Lfm2):
    """LFM2 with experts in all but the first layers."""

    model_type = "lfm2_moe"
    defaults: ClassVar[Mapping[str, Any]] = {
        **Lfm2.defaults,
        "block_auto_adjust_ff_dim": False,
        "moe_intermediate_size": 1792,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "num_dense_layers": 2,
        "use_expert_bias": True,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    }
    irrelevant = Lfm2.irrelevant | TRAINING_FIELDS
    stacks = GATED_STACKS
    renames = (
        (rf"{_LAYER}feed_forward\.(experts\.\d+)\.w1\.", r"model.\1.mlp.\2.gate_proj."),
        (rf"{_LAYER}feed_forward\.(experts\.\d+)\.w2\.", r"model.\1.mlp.\2.down_proj."),
        (rf"{_LAYER}feed_forward\.(experts\.\d+)\.w3\.", r"model.\1.mlp.\2.up_proj."),
        (rf"{_LAYER}feed_forward\.(experts|gate)\.", r"model.\1.mlp.\2."),
        (
            rf"{_LAYER}feed_forward\.expert_bias$",
            r"model.\1.mlp.gate.e_score_correction_bias",
        ),
        *Lfm2.renames,
    )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of LFM2 and the experts."""
        moe = MixtureConfig(
            num_experts=fields.integer("num_experts"),
            num_experts_per_tok=fields.integer("num_experts_per_tok"),
            moe_intermediate_size=fields.integer("moe_intermediate_size"),
            sparse_layers=dense_before(fields, "num_dense_layers"),
            router=RouterConfig(
                scoring="sigmoid",
                e_score_correction_bias=fields.flag("use_expert_bias"),
                norm_topk_prob=fields.flag("norm_topk_prob"),
                norm_topk_epsilon=1e-6,
                routed_scaling_factor=fields.number("routed_scaling_factor"),
            ),
        )
        return super().arguments(fields) | {"moe": moe}


ARCHITECTURE = Lfm2Moe()
