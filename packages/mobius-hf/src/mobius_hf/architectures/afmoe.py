"""Trinity (AFMoE). Source: `transformers` `AfmoeForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig, RouterConfig
from mobius_components.config import SLIDING_ATTENTION
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import TRAINING_FIELDS, dense_before
from mobius_hf.stacks import GATED_STACKS
from mobius_hf.windows import Windows, by_layer_types


class Afmoe(DecoderArchitecture):
    """Norms around both parts, gated attention that rotates where it slides, sigmoid routing."""

    model_type = "afmoe"
    required = (
        *DecoderArchitecture.required,
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 16384,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "sliding_window": 1024,
        "num_dense_layers": 1,
        "num_shared_experts": 2,
        "route_scale": 1.0,
        "mup_enabled": False,
    }
    # Older files say so what transformers takes for granted.
    fixed: ClassVar[Mapping[str, object]] = {
        "attention_bias": False,
        "n_group": 1,
        "num_expert_groups": 1,
        "num_limited_groups": 1,
        "route_norm": True,
        "score_func": "sigmoid",
        "topk_group": 1,
    }
    # The layer types say what the pattern would.
    irrelevant = TRAINING_FIELDS | {
        "global_attn_every_n_layers",
        "load_balance_coeff",
        "use_grouped_mm",
    }
    renames = (
        (r"^(?:model\.)?(layers\.\d+\.mlp)\.router\.gate\.", r"model.\1.gate."),
        (
            r"^(?:model\.)?(layers\.\d+\.mlp)\.expert_bias$",
            r"model.\1.gate.e_score_correction_bias",
        ),
        (
            r"^(?:model\.)?(layers\.\d+)\.(pre|post)_mlp_layernorm\.",
            r"model.\1.\2_feedforward_layernorm.",
        ),
        *DecoderArchitecture.renames,
    )
    stacks = GATED_STACKS

    def windows(self, fields: ConfigFields) -> Windows:
        """Return the window of the sliding layers."""
        return by_layer_types(fields)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, those of attention, and the experts."""
        arguments = super().arguments(fields)
        inner = fields.integer("moe_intermediate_size")
        moe = MixtureConfig(
            num_experts=fields.integer("num_experts"),
            num_experts_per_tok=fields.integer("num_experts_per_tok"),
            moe_intermediate_size=inner,
            sparse_layers=dense_before(fields, "num_dense_layers"),
            router=RouterConfig(
                scoring="sigmoid",
                e_score_correction_bias=True,
                norm_topk_prob=True,
                norm_topk_epsilon=1e-20,
                routed_scaling_factor=fields.number("route_scale"),
            ),
            shared_expert_intermediate_size=inner * fields.integer("num_shared_experts"),
        )
        scaled = fields.flag("mup_enabled")
        return arguments | {
            "layer_layout": "sandwich",
            "qk_norm": "head",
            "attention_gate": True,
            "rope_layers": tuple(kind == SLIDING_ATTENTION for kind in arguments["layer_types"]),
            "embedding_multiplier": arguments["hidden_size"] ** 0.5 if scaled else None,
            "moe": moe,
        }


ARCHITECTURE = Afmoe()
