"""MiniMax M2. Source: `transformers` `MiniMaxM2ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig, RouterConfig
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import MIXTRAL_RENAMES, TRAINING_FIELDS
from mobius_hf.stacks import GATED_STACKS
from mobius_hf.windows import Windows

_CORRECTION = (
    r"^(?:model\.)?(layers\.\d+)\.(?:block_sparse_moe|mlp)\.(e_score_correction_bias)$",
    r"model.\1.mlp.gate.\2",
)


class MiniMaxM2(DecoderArchitecture):
    """Norms of whole queries and keys, a part of each head rotates, experts in every layer."""

    model_type = "minimax_m2"
    required = (
        *DecoderArchitecture.required,
        "num_local_experts|num_experts",
        "num_experts_per_tok",
    )
    partial_rotary = True
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 196608,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    fixed: ClassVar[Mapping[str, object]] = {
        "qk_norm_type": "per_layer",
        "scoring_func": "sigmoid",
        "shared_intermediate_size": 0,
        "use_qk_norm": True,
        "use_routing_bias": True,
    }
    # The width of what rotates is that of `partial_rotary_factor`, which transformers makes of it;
    # layers that predict further tokens are not built.
    irrelevant = TRAINING_FIELDS | {
        "mtp_transformer_layers",
        "num_mtp_modules",
        "rotary_dim",
        "use_mtp",
    }
    left_out = (*DecoderArchitecture.left_out, r"(^|\.)mtp\.")
    renames = (_CORRECTION, *MIXTRAL_RENAMES, *DecoderArchitecture.renames)
    stacks = GATED_STACKS

    def windows(self, fields: ConfigFields) -> Windows:
        """Return that no layer slides.

        Raises:
            CheckpointConfigError: if `attn_type_list` has another type than 1, full attention.
        """
        kinds = fields.value("attn_type_list")
        if kinds is not None and kinds != [1] * fields.integer("num_hidden_layers"):
            raise fields.unfit("attn_type_list", kinds, "1 for each layer")
        return super().windows(fields)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the norms and the experts."""
        arguments = super().arguments(fields)
        router = RouterConfig(scoring="sigmoid", e_score_correction_bias=True, norm_topk_prob=True)
        moe = MixtureConfig(
            num_experts=fields.first_integer("num_local_experts", "num_experts"),
            num_experts_per_tok=fields.integer("num_experts_per_tok"),
            moe_intermediate_size=arguments["intermediate_size"],
            router=router,
        )
        return arguments | {"qk_norm": "full", "moe": moe}


ARCHITECTURE = MiniMaxM2()
