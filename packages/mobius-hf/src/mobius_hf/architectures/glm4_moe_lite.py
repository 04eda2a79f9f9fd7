"""GLM 4.7 Flash. Source: `transformers` `Glm4MoeLiteForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig
from mobius_hf.architectures.deepseek_v3 import DeepseekV3
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import deepseek_mixture

_KINDS = ("dense", "sparse")


class Glm4MoeLite(DeepseekV3):
    """DeepSeek-V3's attention and experts, the layers of which the file lists."""

    model_type = "glm4_moe_lite"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DeepseekV3.defaults,
        "max_position_embeddings": 202752,
        "num_key_value_heads": 20,
        "q_lora_rank": 768,
        "rms_norm_eps": 1e-5,
        "n_group": 1,
        "topk_group": 1,
        "mlp_layer_types": None,
        "routed_scaling_factor": 1.8,
    }

    def mixture(self, fields: ConfigFields) -> MixtureConfig:
        """Return the experts; a file without `mlp_layer_types` has them in all layers but one."""
        layers = fields.integer("num_hidden_layers")
        kinds = fields.value("mlp_layer_types") or ["dense", *["sparse"] * (layers - 1)]
        if not isinstance(kinds, list) or any(kind not in _KINDS for kind in kinds):
            raise fields.unfit("mlp_layer_types", kinds, "a list of 'dense' and 'sparse'")
        return deepseek_mixture(fields, tuple(kind == "sparse" for kind in kinds))


ARCHITECTURE = Glm4MoeLite()
