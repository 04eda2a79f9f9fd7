"""ERNIE 4.5 with experts. Source: `transformers` `Ernie4_5_MoeForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig, RouterConfig
from mobius_hf.architectures.ernie4_5 import Ernie45
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import TRAINING_FIELDS
from mobius_hf.stacks import GATED_STACKS
from mobius_hf.transforms import Squeezed


class Ernie45Moe(Ernie45):
    """ERNIE 4.5 with experts in some layers, and shared ones beside them."""

    model_type = "ernie4_5_moe"
    required = (
        *Ernie45.required,
        "moe_num_experts|num_experts",
        "moe_k|num_experts_per_tok",
        "moe_intermediate_size",
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        **{name: value for name, value in Ernie45.defaults.items() if name != "head_dim"},
        "num_key_value_heads": 4,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
        "moe_norm_min": 1e-12,
    }
    # Bounds and implementations of training; further tokens at once are not predicted.
    fixed: ClassVar[Mapping[str, object]] = {**Ernie45.fixed, "moe_use_aux_free": True}
    irrelevant = (
        TRAINING_FIELDS
        | Ernie45.irrelevant
        | {"moe_capacity", "moe_gate", "num_nextn_predict_layers"}
    )
    left_out = (*Ernie45.left_out, r"^(?:model\.)?mtp_")
    renames = (
        (
            r"^(?:model\.)?(layers\.\d+\.mlp)\.(?:gate\.)?moe_statics\.",
            r"model.\1.gate.",
        ),
        *Ernie45.renames,
    )
    transforms = (Squeezed(r".*\.e_score_correction_bias"),)
    stacks = GATED_STACKS

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of ERNIE 4.5 and the experts."""
        inner = fields.integer("moe_intermediate_size")
        router = RouterConfig(
            norm_topk_prob=True,
            norm_topk_min=fields.number("moe_norm_min"),
            e_score_correction_bias=True,
            float32=True,
        )
        moe = MixtureConfig(
            num_experts=fields.first_integer("moe_num_experts", "num_experts"),
            num_experts_per_tok=fields.first_integer("moe_k", "num_experts_per_tok"),
            moe_intermediate_size=inner,
            sparse_layers=_sparse_layers(fields),
            router=router,
            shared_expert_intermediate_size=inner * fields.integer("moe_num_shared_experts")
            or None,
        )
        return super().arguments(fields) | {"lm_head_bias": fields.flag("use_bias"), "moe": moe}


def _sparse_layers(fields: ConfigFields) -> tuple[bool, ...]:
    """Return which layers have experts. Source: `transformers` `Ernie4_5_MoeDecoderLayer`."""
    layers = fields.integer("num_hidden_layers")
    first, last = fields.integer("moe_layer_start_index"), fields.integer("moe_layer_end_index")
    step = fields.integer("moe_layer_interval")
    if step < 1:
        raise fields.unfit("moe_layer_interval", step, "an integer of at least 1")
    last = layers - 1 if last == -1 else last
    return tuple(first <= layer <= last and (layer + 1) % step == 0 for layer in range(layers))


ARCHITECTURE = Ernie45Moe()
