"""K-EXAONE. Source: `transformers` `ExaoneMoeForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.exaone4 import Exaone4
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import TRAINING_FIELDS, deepseek_mixture, sparse_by_type
from mobius_hf.stacks import GATED_STACKS


class ExaoneMoe(Exaone4):
    """EXAONE 4 with norms before each part, and DeepSeek-V3's experts."""

    model_type = "exaone_moe"
    required = (
        *Exaone4.required,
        "num_experts|num_local_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        **Exaone4.defaults,
        "first_k_dense_replace": 1,
        "num_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
    }
    irrelevant = Exaone4.irrelevant | TRAINING_FIELDS
    left_out = (*Exaone4.left_out, r"^mtp")
    renames = (
        (
            r"^(?:model\.)?(layers\.\d+\.mlp)\.(e_score_correction_bias)$",
            r"model.\1.gate.\2",
        ),
        *Exaone4.renames,
    )
    stacks = GATED_STACKS

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of EXAONE 4, the layout and the experts."""
        moe = deepseek_mixture(
            fields,
            sparse_by_type(fields, "first_k_dense_replace"),
            experts=("num_experts", "num_local_experts"),
            shared="num_shared_experts",
        )
        return super().arguments(fields) | {"layer_layout": "pre_norm", "moe": moe}


ARCHITECTURE = ExaoneMoe()
