"""GLM 4.5 to 4.7. Source: `transformers` `Glm4MoeForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import TRAINING_FIELDS, deepseek_mixture, dense_before
from mobius_hf.stacks import GATED_STACKS


class Glm4Moe(DecoderArchitecture):
    """Half of each head rotates; DeepSeek-V3's experts.

    Checkpoints hold a layer more than `num_hidden_layers`, which predicts one token further on.
    """

    model_type = "glm4_moe"
    required = (
        *DecoderArchitecture.required,
        "n_routed_experts|num_local_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
    )
    partial_rotary = True
    further_layers = True
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "attention_bias": False,
        "use_qk_norm": False,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    }
    irrelevant = TRAINING_FIELDS | {"num_nextn_predict_layers", "num_mtp_layers"}
    stacks = GATED_STACKS

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the norms, the bias and the experts."""
        return super().arguments(fields) | {
            "qk_norm": "head" if fields.flag("use_qk_norm") else None,
            "attention_bias": fields.flag("attention_bias"),
            "moe": deepseek_mixture(fields, dense_before(fields)),
        }


ARCHITECTURE = Glm4Moe()
