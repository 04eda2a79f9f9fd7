"""BLOOM. Source: `transformers` `BloomForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from onnxscript import nn

from mobius_components import ArchitectureConfig
from mobius_components.models import CausalLMModel
from mobius_hf.architectures.base import Architecture
from mobius_hf.config import ConfigFields
from mobius_hf.transforms import SplitGroups

_LAYER = r"^(?:transformer\.)?h\.(\d+)"


class Bloom(Architecture):
    """ALiBi, a norm of the embedding; queries, keys and values of a head are stored together."""

    model_type = "bloom"
    required = ("vocab_size", "hidden_size|n_embed", "n_layer", "n_head|num_attention_heads")
    defaults: ClassVar[Mapping[str, Any]] = {
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    }
    fixed: ClassVar[Mapping[str, object]] = {"apply_residual_connection_post_layernorm": False}
    # Names of the kernels that trained it, and lengths that ALiBi does not need.
    irrelevant = frozenset(
        {
            "attention_softmax_in_fp32",
            "bias_dropout_fusion",
            "masked_softmax_fusion",
            "offset_alibi",
            "seq_length",
            "skip_bias_add",
            "skip_bias_add_qkv",
            "slow_but_exact",
        }
    )
    renames = (
        (_LAYER + r"\.self_attention\.dense\.", r"model.layers.\1.self_attn.o_proj."),
        (_LAYER + r"\.self_attention\.", r"model.layers.\1.self_attn."),
        (_LAYER + r"\.mlp\.dense_h_to_4h\.", r"model.layers.\1.mlp.up_proj."),
        (_LAYER + r"\.mlp\.dense_4h_to_h\.", r"model.layers.\1.mlp.down_proj."),
        (_LAYER + r"\.", r"model.layers.\1."),
        (r"^(?:transformer\.)?word_embeddings\.", "model.embed_tokens."),
        (r"^(?:transformer\.)?word_embeddings_layernorm\.", "model.embed_norm."),
        (r"^(?:transformer\.)?ln_f\.", "model.norm."),
    )
    transforms = (
        SplitGroups(
            r"(.*\.self_attn)\.query_key_value\.(.*)",
            (r"\1.q_proj.\2", r"\1.k_proj.\2", r"\1.v_proj.\2"),
        ),
    )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return all arguments, from BLOOM's own names."""
        width = fields.first_integer("n_embed", "hidden_size")
        return {
            "vocab_size": fields.integer("vocab_size"),
            "hidden_size": width,
            "intermediate_size": 4 * width,
            "num_hidden_layers": fields.integer("n_layer"),
            "num_attention_heads": fields.first_integer("n_head", "num_attention_heads"),
            "hidden_act": "gelu_new",
            "rms_norm_eps": fields.number("layer_norm_epsilon"),
            "tie_word_embeddings": fields.flag("tie_word_embeddings"),
            "position_embedding": "alibi",
            "rope_theta": None,
            "embedding_norm": True,
            "norm_type": "layer",
            "mlp_gated": False,
            "attention_bias": True,
            "attention_output_bias": True,
            "mlp_bias": True,
        }

    def make_module(self, config: ArchitectureConfig) -> nn.Module:
        """Return a `CausalLMModel`."""
        return CausalLMModel(config)


ARCHITECTURE = Bloom()
