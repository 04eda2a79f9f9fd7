"""Ministral 3, text part. Source: `transformers` `Ministral3ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components.query_temperature_config import QueryTemperatureConfig
from mobius_hf.architectures.mistral import Mistral
from mobius_hf.config import ConfigFields
from mobius_hf.rope import read_rope
from mobius_hf.windows import Windows


class Ministral3(Mistral):
    """Mistral whose queries grow with their position."""

    model_type = "ministral3"
    defaults: ClassVar[Mapping[str, Any]] = {
        **Mistral.defaults,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
    }

    def rotary(self, fields: ConfigFields, windows: Windows) -> dict[str, Any]:
        """Return the rotary embedding and how queries grow, which is stored with it."""
        beta_field = "llama_4_scaling_beta"
        # transformers lets the number of positions be repeated there.
        own = frozenset({beta_field, "max_position_embeddings"})
        rope = read_rope(fields, set(windows.layer_types), own)
        parameters = fields.value("rope_parameters") or fields.value("rope_scaling")
        beta = parameters.get(beta_field)
        length = parameters.get("original_max_position_embeddings")
        if beta is None or length is None:
            needed = f"{beta_field} and original_max_position_embeddings"
            raise fields.unfit("rope_parameters", parameters, needed)
        return {
            "rope_theta": rope.theta,
            "rope_scaling": rope.scaling,
            "query_temperature": QueryTemperatureConfig(beta=beta, length=length),
        }


ARCHITECTURE = Ministral3()
