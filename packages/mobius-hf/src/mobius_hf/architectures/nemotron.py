"""Nemotron 3 and 4, Minitron. Source: `transformers` `NemotronForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.transforms import PlusOne


class Nemotron(DecoderArchitecture):
    """Layer norms whose weight is stored less one, squared ReLU, a part of each head rotates."""

    model_type = "nemotron"
    partial_rotary = True
    epsilon_field = "norm_eps"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "hidden_act": "relu2",
        "max_position_embeddings": 4096,
        "norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "attention_bias": False,
        "mlp_bias": False,
    }
    transforms = (PlusOne(r".*norm\.weight"),)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the norms and the biases."""
        attention_bias = fields.flag("attention_bias")
        return super().arguments(fields) | {
            "norm_type": "layer",
            "mlp_gated": False,
            "attention_bias": attention_bias,
            "attention_output_bias": attention_bias,
            "mlp_bias": fields.flag("mlp_bias"),
        }


ARCHITECTURE = Nemotron()
