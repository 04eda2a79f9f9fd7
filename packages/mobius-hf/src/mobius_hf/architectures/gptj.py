"""GPT-J. Source: `transformers` `GPTJForCausalLM`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from onnxscript import nn

from mobius_components import ArchitectureConfig
from mobius_components.models import CausalLMModel
from mobius_hf.architectures.base import Architecture
from mobius_hf.config import ConfigFields

_LAYER = r"^(?:transformer\.)?h\.(\d+)"


class GPTJ(Architecture):
    """Attention and feed-forward of one layer norm; the first `rotary_dim` of a head rotate."""

    model_type = "gptj"
    required = ("vocab_size", "n_embd", "n_layer", "n_head")
    defaults: ClassVar[Mapping[str, Any]] = {
        "n_positions": 2048,
        "rotary_dim": 64,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": False,
    }
    # Older files say so what transformers takes for granted.
    fixed: ClassVar[Mapping[str, object]] = {
        "rotary": True,
        "scale_attn_weights": True,
    }
    irrelevant = frozenset({"n_ctx"})
    left_out = (r"\.attn\.(?:masked_)?bias$", r"\.attn\.(?:causal_mask|embed_positions)$")
    renames = (
        (_LAYER + r"\.ln_1\.", r"model.layers.\1.input_layernorm."),
        (_LAYER + r"\.attn\.out_proj\.", r"model.layers.\1.self_attn.o_proj."),
        (_LAYER + r"\.attn\.", r"model.layers.\1.self_attn."),
        (_LAYER + r"\.mlp\.fc_in\.", r"model.layers.\1.mlp.up_proj."),
        (_LAYER + r"\.mlp\.fc_out\.", r"model.layers.\1.mlp.down_proj."),
        (r"^(?:transformer\.)?wte\.", "model.embed_tokens."),
        (r"^(?:transformer\.)?ln_f\.", "model.norm."),
    )

    def to_config(
        self, raw: Mapping[str, Any], path: Path, *, through_transformers: bool = True
    ) -> ArchitectureConfig:
        """Return the architecture; some files name the rotation, which is the only one here."""
        if raw.get("rope_scaling") == {"rope_type": "gptj"}:
            raw = {name: value for name, value in raw.items() if name != "rope_scaling"}
        return super().to_config(raw, path, through_transformers=through_transformers)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return all arguments, from GPT-J's own names."""
        width, heads = fields.integer("n_embd"), fields.integer("n_head")
        # Just above the quotient, so that the product with the head's width is not just below.
        factor = math.nextafter(fields.integer("rotary_dim") * heads / width, 1.0)
        return {
            "vocab_size": fields.integer("vocab_size"),
            "hidden_size": width,
            "intermediate_size": fields.integer_or("n_inner", 4 * width),
            "num_hidden_layers": fields.integer("n_layer"),
            "num_attention_heads": heads,
            "max_position_embeddings": fields.integer("n_positions"),
            "hidden_act": fields.text("activation_function"),
            "rms_norm_eps": fields.number("layer_norm_epsilon"),
            "tie_word_embeddings": fields.flag("tie_word_embeddings"),
            "partial_rotary_factor": factor,
            "rope_interleaved": True,
            "norm_type": "layer",
            "layer_layout": "parallel",
            "mlp_gated": False,
            "mlp_bias": True,
            "lm_head_bias": True,
        }

    def make_module(self, config: ArchitectureConfig) -> nn.Module:
        """Return a `CausalLMModel`."""
        return CausalLMModel(config)


ARCHITECTURE = GPTJ()
