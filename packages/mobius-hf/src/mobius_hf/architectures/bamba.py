"""Bamba. Source: `transformers` `BambaForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components.config import FULL_ATTENTION, MAMBA2
from mobius_hf.architectures.llama import Llama
from mobius_hf.config import ConfigFields
from mobius_hf.state_spaces import (
    IMPLEMENTATION_FIELDS,
    MAMBA2_DEFAULTS,
    TRAINING_FIELDS,
    read_mamba2,
)
from mobius_hf.windows import Windows

_LAYER = r"^(?:model\.)?(layers\.\d+)\."


class Bamba(Llama):
    """Mamba 2 in most layers, attention in the others; half of each head rotates."""

    model_type = "bamba"
    partial_rotary = True
    defaults: ClassVar[Mapping[str, Any]] = {
        **Llama.defaults,
        **MAMBA2_DEFAULTS,
        "num_key_value_heads": 8,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
    }
    fixed: ClassVar[Mapping[str, object]] = {}
    irrelevant = TRAINING_FIELDS | IMPLEMENTATION_FIELDS | {"attn_rotary_emb"}
    renames = (
        (rf"{_LAYER}feed_forward\.", r"model.\1.mlp."),
        (rf"{_LAYER}pre_ff_layernorm\.", r"model.\1.post_attention_layernorm."),
        (r"^(?:model\.)?final_layernorm\.", "model.norm."),
        *Llama.renames,
    )

    def windows(self, fields: ConfigFields) -> Windows:
        """Return no window, and the type of each layer."""
        attending = fields.layer_numbers("attn_layer_indices") or ()
        layers = range(fields.integer("num_hidden_layers"))
        kinds = tuple(FULL_ATTENTION if n in attending else MAMBA2 for n in layers)
        return Windows(None, kinds)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Llama and the state space."""
        return super().arguments(fields) | {"mamba2": read_mamba2(fields)}


ARCHITECTURE = Bamba()
