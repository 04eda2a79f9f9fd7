"""Apertus. Source: `transformers` `ApertusForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.transforms import Softplus


class Apertus(DecoderArchitecture):
    """Query and key heads are normalised; a feed-forward layer without gate and with xIELU."""

    model_type = "apertus"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "hidden_act": "xielu",
        "max_position_embeddings": 65536,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
    }
    # Older files; the norms of queries and keys are always there, and they come first.
    fixed: ClassVar[Mapping[str, object]] = {"mlp_bias": False, "post_norm": False, "qk_norm": True}
    renames = (
        (
            r"^(?:model\.)?(layers\.\d+)\.attention_layernorm\.",
            r"model.\1.input_layernorm.",
        ),
        (
            r"^(?:model\.)?(layers\.\d+)\.feedforward_layernorm\.",
            r"model.\1.post_attention_layernorm.",
        ),
        *DecoderArchitecture.renames,
    )
    transforms = (Softplus(r".*\.act_fn\.alpha_[np]"),)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the norms and the biases."""
        attention_bias = fields.flag("attention_bias")
        return super().arguments(fields) | {
            "qk_norm": "head",
            "mlp_gated": False,
            "attention_bias": attention_bias,
            "attention_output_bias": attention_bias,
        }


ARCHITECTURE = Apertus()
