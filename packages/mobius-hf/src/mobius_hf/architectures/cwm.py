"""Code World Model. Source: `transformers` `CwmForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.windows import Windows, by_layer_types


class Cwm(DecoderArchitecture):
    """Llama with sliding and full layers."""

    model_type = "cwm"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "sliding_window": 8192,
        "mlp_bias": False,
    }

    def windows(self, fields: ConfigFields) -> Windows:
        """Return the window of the sliding layers."""
        return by_layer_types(fields)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments and the bias."""
        return super().arguments(fields) | {"mlp_bias": fields.flag("mlp_bias")}


ARCHITECTURE = Cwm()
