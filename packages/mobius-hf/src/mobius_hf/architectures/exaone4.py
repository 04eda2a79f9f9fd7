"""EXAONE 4. Source: `transformers` `Exaone4ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components.config import SLIDING_ATTENTION
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.windows import Windows, by_layer_types


class Exaone4(DecoderArchitecture):
    """Norms after each part and of each head; where layers slide, only those rotate."""

    model_type = "exaone4"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "num_key_value_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "sliding_window": 4096,
    }
    # The layer types say what the pattern would.
    irrelevant = frozenset({"sliding_window_pattern"})

    def windows(self, fields: ConfigFields) -> Windows:
        """Return the window of the sliding layers."""
        return by_layer_types(fields)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the norms and which layers rotate."""
        arguments = super().arguments(fields)
        everywhere = fields.value("sliding_window") is None
        return arguments | {
            "layer_layout": "post_norm",
            "qk_norm": "head",
            "rope_layers": tuple(
                everywhere or kind == SLIDING_ATTENTION for kind in arguments["layer_types"]
            ),
        }


ARCHITECTURE = Exaone4()
