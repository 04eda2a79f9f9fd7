"""VaultGemma. Source: `transformers` `VaultGemmaForCausalLM`."""

from __future__ import annotations

from typing import Any

from mobius_hf.architectures.gemma2 import Gemma2
from mobius_hf.config import ConfigFields


class VaultGemma(Gemma2):
    """Gemma 2 without the norms after each part."""

    model_type = "vaultgemma"
    renames = (
        (
            r"^(?:model\.)?(layers\.\d+)\.pre_feedforward_layernorm\.",
            r"model.\1.post_attention_layernorm.",
        ),
        *Gemma2.renames,
    )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Gemma 2 with Llama's layout."""
        return super().arguments(fields) | {"layer_layout": "pre_norm"}


ARCHITECTURE = VaultGemma()
