"""OPT. Source: `transformers` `OPTForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from onnxscript import nn

from mobius_components import ArchitectureConfig
from mobius_components.models import CausalLMModel
from mobius_hf.architectures.base import Architecture
from mobius_hf.config import ConfigFields

_LAYER = r"^(?:model\.)?(?:decoder\.)?layers\.(\d+)"


class OPT(Architecture):
    """Learned positions whose rows begin at 2; layer norms before each part, or after the sum."""

    model_type = "opt"
    required = (
        "vocab_size",
        "hidden_size",
        "ffn_dim",
        "num_hidden_layers",
        "num_attention_heads",
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 2048,
        "do_layer_norm_before": True,
        "_remove_final_layer_norm": False,
        "activation_function": "relu",
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "tie_word_embeddings": True,
    }
    irrelevant = frozenset({"activation_dropout", "dropout", "init_std", "layerdrop"})
    renames = (
        (_LAYER + r"\.self_attn\.out_proj\.", r"model.layers.\1.self_attn.o_proj."),
        (_LAYER + r"\.fc1\.", r"model.layers.\1.mlp.up_proj."),
        (_LAYER + r"\.fc2\.", r"model.layers.\1.mlp.down_proj."),
        (_LAYER + r"\.self_attn_layer_norm\.", r"model.layers.\1.input_layernorm."),
        (_LAYER + r"\.final_layer_norm\.", r"model.layers.\1.post_attention_layernorm."),
        (_LAYER + r"\.", r"model.layers.\1."),
        (r"^(?:model\.)?(?:decoder\.)?final_layer_norm\.", "model.norm."),
        (
            r"^(?:model\.)?(?:decoder\.)?(embed_(?:tokens|positions)|project_(?:in|out))\.",
            r"model.\1.",
        ),
    )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return all arguments, from OPT's own names."""
        width = fields.integer("hidden_size")
        removed = fields.flag("_remove_final_layer_norm")
        before, bias = fields.flag("do_layer_norm_before"), fields.flag("enable_bias")
        affine = fields.flag("layer_norm_elementwise_affine")
        return {
            "vocab_size": fields.integer("vocab_size"),
            "hidden_size": width,
            "embedding_size": fields.optional_integer("word_embed_proj_dim"),
            "intermediate_size": fields.integer("ffn_dim"),
            "num_hidden_layers": fields.integer("num_hidden_layers"),
            "num_attention_heads": fields.integer("num_attention_heads"),
            "max_position_embeddings": fields.integer("max_position_embeddings"),
            "hidden_act": fields.text("activation_function"),
            "tie_word_embeddings": fields.flag("tie_word_embeddings"),
            "position_embedding": "learned",
            "position_offset": 2,
            "rope_theta": None,
            "norm_type": "layer" if affine else "layer_plain",
            "rms_norm_eps": 1e-5,
            "layer_layout": "pre_norm" if before else "norm_after_add",
            "final_norm": before and not removed,
            "mlp_gated": False,
            "attention_bias": bias,
            "attention_output_bias": bias,
            "mlp_bias": bias,
        }

    def make_module(self, config: ArchitectureConfig) -> nn.Module:
        """Return a `CausalLMModel`."""
        return CausalLMModel(config)


ARCHITECTURE = OPT()
