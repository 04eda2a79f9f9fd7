"""BioGPT. Source: `transformers` `BioGptForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.windows import Windows

_LAYER = r"^(?:biogpt\.)?layers\.(\d+)"


class BioGpt(DecoderArchitecture):
    """Learned positions whose rows begin at 2, layer norms, biases, scaled embedded tokens."""

    model_type = "biogpt"
    # The norms have torch's own epsilon.
    epsilon_field = None
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "hidden_act": "gelu",
        "max_position_embeddings": 1024,
        "scale_embedding": True,
        "tie_word_embeddings": True,
    }
    irrelevant = frozenset({"activation_dropout", "layer_norm_eps", "layerdrop"})
    renames = (
        (_LAYER + r"\.self_attn\.out_proj\.", r"model.layers.\1.self_attn.o_proj."),
        (_LAYER + r"\.fc1\.", r"model.layers.\1.mlp.up_proj."),
        (_LAYER + r"\.fc2\.", r"model.layers.\1.mlp.down_proj."),
        (_LAYER + r"\.self_attn_layer_norm\.", r"model.layers.\1.input_layernorm."),
        (_LAYER + r"\.final_layer_norm\.", r"model.layers.\1.post_attention_layernorm."),
        (_LAYER + r"\.", r"model.layers.\1."),
        (r"^(?:biogpt\.)?(embed_(?:tokens|positions))\.", r"model.\1."),
        (r"^(?:biogpt\.)?layer_norm\.", "model.norm."),
        (r"^output_projection\.", "lm_head."),
    )

    def rotary(self, fields: ConfigFields, windows: Windows) -> dict[str, Any]:
        """Return the learned positions."""
        del fields, windows
        return {"rope_theta": None, "position_embedding": "learned", "position_offset": 2}

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the norms, the biases and the scale of the embedding."""
        arguments = super().arguments(fields)
        scaled = fields.flag("scale_embedding")
        return arguments | {
            "norm_type": "layer",
            "rms_norm_eps": 1e-5,
            "embedding_multiplier": arguments["hidden_size"] ** 0.5 if scaled else None,
            "mlp_gated": False,
            "attention_bias": True,
            "attention_output_bias": True,
            "mlp_bias": True,
        }


ARCHITECTURE = BioGpt()
