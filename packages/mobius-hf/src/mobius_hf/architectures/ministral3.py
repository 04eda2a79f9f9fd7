"""Ministral 3, text part. Source: `transformers` `Ministral3ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components.query_temperature_config import QueryTemperatureConfig
from mobius_hf.architectures.mistral import Mistral
from mobius_hf.config import ConfigFields
from mobius_hf.rope import read_rope, rope_object
from mobius_hf.windows import Windows

_BETA = "llama_4_scaling_beta"
TEMPERATURE_FIELDS = frozenset({_BETA, "max_position_embeddings"})
"""Rotary parameters that are not the rotation's; the number of positions may be repeated there."""


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
        rope = read_rope(fields, set(windows.layer_types), TEMPERATURE_FIELDS)
        beta, length = read_temperature(fields)
        return {
            "rope_theta": rope.theta,
            "rope_scaling": rope.scaling,
            "query_temperature": QueryTemperatureConfig(beta=beta, length=length),
        }


def read_temperature(fields: ConfigFields) -> tuple[float, int]:
    """Return how fast queries grow, and the tokens until they do for the first time.

    Raises:
        CheckpointConfigError: if the rotary parameters lack one of them.
    """
    name, parameters = rope_object(fields)
    beta = parameters.get(_BETA)
    length = parameters.get("original_max_position_embeddings")
    if beta is None or length is None:
        needed = f"{_BETA} and original_max_position_embeddings"
        raise fields.unfit(name, parameters, needed)
    return beta, length


ARCHITECTURE = Ministral3()
