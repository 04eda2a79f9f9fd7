"""LFM2, dense. Source: `transformers` `Lfm2ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import ShortConvConfig
from mobius_components.config import FULL_ATTENTION, SHORT_CONV
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.layer_kinds import read_layer_kinds
from mobius_hf.windows import Windows

_LAYER = r"^(?:model\.)?(layers\.\d+)\."


class Lfm2(DecoderArchitecture):
    """Short convolutions in most layers, attention in the others."""

    model_type = "lfm2"
    required = (
        "vocab_size",
        "hidden_size",
        "intermediate_size|block_ff_dim",
        "num_hidden_layers",
        "num_attention_heads",
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_act": "silu",
        "max_position_embeddings": 128_000,
        "num_key_value_heads": 8,
        "norm_eps": 1e-5,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_multiple_of": 256,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": True,
    }
    epsilon_field = "norm_eps"
    fixed: ClassVar[Mapping[str, object]] = {
        "hidden_act": "silu",
        "block_use_swiglu": True,
        "use_pos_enc": True,
    }
    # Initialisation, and sizes that transformers takes from `hidden_size` and its like.
    irrelevant = frozenset(
        {
            "block_dim",
            "block_mlp_init_scale",
            "block_norm_eps",
            "block_out_init_scale",
            "block_use_xavier_init",
            "conv_dim",
            "conv_dim_out",
            "conv_use_xavier_init",
            "num_heads",
            "theta",
        }
    )
    renames = (
        (rf"{_LAYER}feed_forward\.w1\.", r"model.\1.mlp.gate_proj."),
        (rf"{_LAYER}feed_forward\.w2\.", r"model.\1.mlp.down_proj."),
        (rf"{_LAYER}feed_forward\.w3\.", r"model.\1.mlp.up_proj."),
        (rf"{_LAYER}operator_norm\.", r"model.\1.input_layernorm."),
        (rf"{_LAYER}ffn_norm\.", r"model.\1.post_attention_layernorm."),
        (rf"{_LAYER}self_attn\.out_proj\.", r"model.\1.self_attn.o_proj."),
        (rf"{_LAYER}self_attn\.([qk])_layernorm\.", r"model.\1.self_attn.\2_norm."),
        (r"^(?:model\.)?embedding_norm\.", "model.norm."),
        *DecoderArchitecture.renames,
    )

    def windows(self, fields: ConfigFields) -> Windows:
        """Return no window, and the type of each layer."""
        kinds = {"full_attention": FULL_ATTENTION, "conv": SHORT_CONV}
        stated = read_layer_kinds(fields, kinds, "layer_types")
        listed = fields.layer_numbers("full_attn_idxs")
        layers = range(fields.integer("num_hidden_layers"))
        if stated is None:
            attending = layers if listed is None else listed
            stated = tuple(FULL_ATTENTION if n in attending else SHORT_CONV for n in layers)
        return Windows(None, stated)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the norms and the convolution."""
        tied = fields.value("tie_embedding")
        return super().arguments(fields) | {
            "intermediate_size": _feed_forward_width(fields),
            "qk_norm": "head",
            "short_conv": ShortConvConfig(
                taps=fields.integer("conv_L_cache"), bias=fields.flag("conv_bias")
            ),
            **({} if tied is None else {"tie_word_embeddings": tied}),
        }


def _feed_forward_width(fields: ConfigFields) -> int:
    """Return the width as `Lfm2MLP` computes it."""
    width = fields.first_integer("block_ff_dim", "intermediate_size")
    multiple = fields.integer("block_multiple_of")
    if not fields.flag("block_auto_adjust_ff_dim"):
        return width
    width = int(2 * width / 3)
    if fields.value("block_ffn_dim_multiplier") is None:
        return width
    factor = fields.number("block_ffn_dim_multiplier")
    if multiple < 1:
        raise fields.unfit("block_multiple_of", multiple, "an integer of at least 1")
    return multiple * -(-int(factor * width) // multiple)


ARCHITECTURE = Lfm2()
