"""GPT-Neo. Source: `transformers` `GPTNeoForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from onnxscript import nn

from mobius_components import ArchitectureConfig
from mobius_components.config import FULL_ATTENTION, SLIDING_ATTENTION
from mobius_components.models import CausalLMModel
from mobius_hf.architectures.base import Architecture
from mobius_hf.config import ConfigFields

_LAYER = r"^(?:transformer\.)?h\.(\d+)"
_KINDS = {"global": FULL_ATTENTION, "local": SLIDING_ATTENTION}


class GPTNeo(Architecture):
    """Learned positions, layer norms, scores that are not scaled, a window in some layers."""

    model_type = "gpt_neo"
    required = (
        "vocab_size",
        "hidden_size",
        "num_layers|num_hidden_layers",
        "num_heads|num_attention_heads",
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 2048,
        "window_size": 256,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    }
    irrelevant = frozenset({"embed_dropout", "resid_dropout"})
    left_out = (r"\.attn\.attention\.(?:masked_)?bias$",)
    renames = (
        (_LAYER + r"\.ln_1\.", r"model.layers.\1.input_layernorm."),
        (_LAYER + r"\.ln_2\.", r"model.layers.\1.post_attention_layernorm."),
        (_LAYER + r"\.attn\.attention\.out_proj\.", r"model.layers.\1.self_attn.o_proj."),
        (_LAYER + r"\.attn\.attention\.", r"model.layers.\1.self_attn."),
        (_LAYER + r"\.mlp\.c_fc\.", r"model.layers.\1.mlp.up_proj."),
        (_LAYER + r"\.mlp\.c_proj\.", r"model.layers.\1.mlp.down_proj."),
        (r"^(?:transformer\.)?wte\.", "model.embed_tokens."),
        (r"^(?:transformer\.)?wpe\.", "model.embed_positions."),
        (r"^(?:transformer\.)?ln_f\.", "model.norm."),
    )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return all arguments, from GPT-Neo's own names."""
        width = fields.integer("hidden_size")
        return {
            "vocab_size": fields.integer("vocab_size"),
            "hidden_size": width,
            "intermediate_size": fields.integer_or("intermediate_size", 4 * width),
            "num_hidden_layers": fields.first_integer("num_layers", "num_hidden_layers"),
            "num_attention_heads": fields.first_integer("num_heads", "num_attention_heads"),
            "max_position_embeddings": fields.integer("max_position_embeddings"),
            "hidden_act": fields.text("activation_function"),
            "rms_norm_eps": fields.number("layer_norm_epsilon"),
            "tie_word_embeddings": fields.flag("tie_word_embeddings"),
            "position_embedding": "learned",
            "rope_theta": None,
            "attention_scale": 1.0,
            "sliding_window": fields.integer("window_size"),
            "layer_types": _layer_types(fields),
            "norm_type": "layer",
            "mlp_gated": False,
            "attention_output_bias": True,
            "mlp_bias": True,
        }

    def make_module(self, config: ArchitectureConfig) -> nn.Module:
        """Return a `CausalLMModel`."""
        return CausalLMModel(config)


def _layer_types(fields: ConfigFields) -> tuple[str, ...]:
    """Return the kinds of the layers from `attention_types`: lists of kinds and repetitions."""
    types = fields.value("attention_types")
    fields.value("attention_layers")  # the same, expanded
    try:
        return tuple(_KINDS[kind] for kinds, times in types for kind in kinds * times)
    except (KeyError, TypeError, ValueError) as error:
        raise fields.unfit(
            "attention_types", types, 'such as [[["global", "local"], 12]]'
        ) from error


ARCHITECTURE = GPTNeo()
