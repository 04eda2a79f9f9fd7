"""Command R. Source: `transformers` `CohereForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.transforms import SplitHeads


class Cohere(DecoderArchitecture):
    """Attention and feed-forward side by side after one layer norm without bias."""

    model_type = "cohere"
    epsilon_field = "layer_norm_eps"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 8192,
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.0625,
        "attention_bias": False,
        "use_qk_norm": False,
        "tie_word_embeddings": True,
    }

    transforms = (SplitHeads(r"(.*\.self_attn\.[qk]_norm)\.weight", r"\1.norms.{}.weight"),)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the layout and the scale of the logits."""
        attention_bias = fields.flag("attention_bias")
        qk_norm = "each_head" if fields.value("use_qk_norm") else None
        return super().arguments(fields) | {
            "norm_type": "layer_no_bias",
            "layer_layout": "parallel",
            "rope_interleaved": True,
            "qk_norm": qk_norm,
            "qk_norm_type": "layer_no_bias",
            "attention_bias": attention_bias,
            "attention_output_bias": attention_bias,
            "logits_scaling": fields.reciprocal("logit_scale"),
        }


ARCHITECTURE = Cohere()
