"""GLM 4 of 2025. Source: `transformers` `Glm4ForCausalLM`."""

from __future__ import annotations

from typing import Any

from mobius_hf.architectures.glm import Glm
from mobius_hf.config import ConfigFields


class Glm4(Glm):
    """GLM with norms before and after each part."""

    model_type = "glm4"
    renames = (
        (
            r"^(?:model\.)?(layers\.\d+)\.post_attention_layernorm\.",
            r"model.\1.pre_feedforward_layernorm.",
        ),
        (
            r"^(?:model\.)?(layers\.\d+)\.post_self_attn_layernorm\.",
            r"model.\1.post_attention_layernorm.",
        ),
        (
            r"^(?:model\.)?(layers\.\d+)\.post_mlp_layernorm\.",
            r"model.\1.post_feedforward_layernorm.",
        ),
        *Glm.renames,
    )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of GLM and the layout."""
        return super().arguments(fields) | {"layer_layout": "sandwich"}


ARCHITECTURE = Glm4()
