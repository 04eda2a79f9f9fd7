"""Falcon 1. Source: `transformers` `FalconForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.transforms import SplitGroups
from mobius_hf.windows import Windows

_LAYER = r"^(?:transformer\.)?h\.(\d+)"


class Falcon(DecoderArchitecture):
    """Queries, keys and values of a group are stored together; three layouts, two positions."""

    model_type = "falcon"
    required = ("vocab_size", "hidden_size|n_embed", "num_hidden_layers", "num_attention_heads")
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 2048,
        "layer_norm_epsilon": 1e-5,
        "alibi": False,
        "new_decoder_architecture": False,
        "multi_query": True,
        "parallel_attn": True,
        "bias": False,
        "activation": "gelu",
        "tie_word_embeddings": True,
    }
    fixed: ClassVar[Mapping[str, object]] = {"apply_residual_connection_post_layernorm": False}
    # Other names of the numbers of heads and layers, which transformers does not read.
    irrelevant = frozenset({"n_head", "n_layer"})
    renames = (
        (_LAYER + r"\.self_attention\.dense\.", r"model.layers.\1.self_attn.o_proj."),
        (_LAYER + r"\.self_attention\.", r"model.layers.\1.self_attn."),
        (_LAYER + r"\.mlp\.dense_h_to_4h\.", r"model.layers.\1.mlp.up_proj."),
        (_LAYER + r"\.mlp\.dense_4h_to_h\.", r"model.layers.\1.mlp.down_proj."),
        (_LAYER + r"\.ln_attn\.", r"model.layers.\1.input_layernorm."),
        (_LAYER + r"\.ln_mlp\.", r"model.layers.\1.post_attention_layernorm."),
        (_LAYER + r"\.", r"model.layers.\1."),
        (r"^(?:transformer\.)?word_embeddings\.", "model.embed_tokens."),
        (r"^(?:transformer\.)?ln_f\.", "model.norm."),
    )
    transforms = (
        SplitGroups(
            r"(.*\.self_attn)\.query_key_value\.(.*)",
            (r"\1.q_proj.\2", r"\1.k_proj.\2", r"\1.v_proj.\2"),
        ),
    )

    def rotary(self, fields: ConfigFields, windows: Windows) -> dict[str, Any]:
        """Return the rotary embedding, or ALiBi, which Falcon scales like the scores."""
        if not fields.flag("alibi"):
            return super().rotary(fields, windows)
        fields.value("rope_parameters")
        width, heads = _width(fields), fields.integer("num_attention_heads")
        if width < heads:
            raise fields.unfit("hidden_size", width, f"at least num_attention_heads, {heads}")
        return {
            "rope_theta": None,
            "position_embedding": "alibi",
            "alibi_scale": (width // heads) ** -0.5,
            "alibi_bfloat16": True,
        }

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return all arguments, from Falcon's own names."""
        width, bias = _width(fields), fields.flag("bias")
        windows = self.windows(fields)
        return {
            "vocab_size": fields.integer("vocab_size"),
            "hidden_size": width,
            "intermediate_size": fields.integer_or("ffn_hidden_size", 4 * width),
            "num_hidden_layers": fields.integer("num_hidden_layers"),
            "num_attention_heads": fields.integer("num_attention_heads"),
            "num_key_value_heads": _key_value_heads(fields),
            "max_position_embeddings": fields.integer("max_position_embeddings"),
            "hidden_act": fields.text("activation"),
            "rms_norm_eps": fields.number("layer_norm_epsilon"),
            "tie_word_embeddings": fields.flag("tie_word_embeddings"),
            **self.rotary(fields, windows),
            "norm_type": "layer",
            "layer_layout": _layout(fields),
            "mlp_gated": False,
            "attention_bias": bias,
            "attention_output_bias": bias,
            "mlp_bias": bias,
        }


def _width(fields: ConfigFields) -> int:
    return fields.first_integer("n_embed", "hidden_size")


def _key_value_heads(fields: ConfigFields) -> int:
    """Return the number of key and value heads: the stated number only in the new architecture."""
    heads, stated = fields.integer("num_attention_heads"), fields.optional_integer("num_kv_heads")
    if fields.flag("new_decoder_architecture"):
        return heads if stated is None else stated
    return 1 if fields.flag("multi_query") else heads


def _layout(fields: ConfigFields) -> str:
    """Return the layout of a layer.

    Raises:
        CheckpointConfigError: if the flags contradict each other.
    """
    new, parallel = fields.flag("new_decoder_architecture"), fields.flag("parallel_attn")
    fields.value("multi_query")  # the new architecture does not ask
    norms = fields.optional_integer("num_ln_in_parallel_attn")
    if not new and not parallel:
        return "pre_norm"
    if norms is None:
        norms = 2 if new else 1
    if not parallel or norms not in ((1, 2) if new else (1,)):
        needed = "1, or 2 with new_decoder_architecture, and parallel_attn"
        raise fields.unfit("num_ln_in_parallel_attn", norms, needed)
    return "parallel_two_norms" if norms == 2 else "parallel"


ARCHITECTURE = Falcon()
