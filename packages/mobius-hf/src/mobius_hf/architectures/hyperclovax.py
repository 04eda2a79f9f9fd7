"""HyperCLOVA X SEED. Source: `transformers` `HyperCLOVAXForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.llama import Llama
from mobius_hf.config import ConfigFields


class HyperCLOVAX(Llama):
    """Granite with norms after each part, too, and with a factor, not a divisor, of the logits."""

    model_type = "hyperclovax"
    defaults: ClassVar[Mapping[str, Any]] = {
        **Llama.defaults,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    }
    fixed: ClassVar[Mapping[str, object]] = {"use_post_norm": True}
    renames = (
        (
            r"^(?:model\.)?(layers\.\d+)\.post_attention_layernorm\.",
            r"model.\1.pre_feedforward_layernorm.",
        ),
        (r"^(?:model\.)?(layers\.\d+)\.post_norm1\.", r"model.\1.post_attention_layernorm."),
        (r"^(?:model\.)?(layers\.\d+)\.post_norm2\.", r"model.\1.post_feedforward_layernorm."),
        *Llama.renames,
    )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Llama, the layout and the multipliers."""
        return super().arguments(fields) | {
            "layer_layout": "sandwich",
            "embedding_multiplier": fields.number("embedding_multiplier"),
            "residual_multiplier": fields.number("residual_multiplier"),
            "logits_scaling": fields.reciprocal("logits_scaling"),
            "attention_scale": fields.value("attention_multiplier"),
        }


ARCHITECTURE = HyperCLOVAX()
