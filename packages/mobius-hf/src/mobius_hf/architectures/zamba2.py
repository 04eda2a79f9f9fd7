"""Zamba 2. Source: `transformers` `Zamba2ForCausalLM`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import onnx_ir as ir

from mobius_components import ArchitectureConfig, Mamba2Config, SharedBlockConfig
from mobius_components.config import MAMBA2, SHARED_BLOCK_BEFORE_MAMBA2
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.layer_kinds import read_layer_kinds
from mobius_hf.state_spaces import IMPLEMENTATION_FIELDS, TRAINING_FIELDS
from mobius_hf.transforms import Named, Transform, leaf
from mobius_hf.windows import Windows
from mobius_ir_rules.lazy import DerivedTensor

_KINDS = {
    "linear_attention": MAMBA2,
    "mamba": MAMBA2,
    "hybrid": SHARED_BLOCK_BEFORE_MAMBA2,
}
_LAYER = r"^(?:model\.)?(layers\.\d+)\."
_NORM_EPS = 1e-5
_LONG_CONTEXT = 16384
_ADAPTER = re.compile(
    r"(?:self_attn\.linear_(?P<head>[qkv])|feed_forward\.gate_up_proj)"
    r"_adapter_list\.(?P<use>\d+)\.(?P<part>[01])\.weight"
)


@dataclasses.dataclass(frozen=True)
class SharedBlockTensor(Transform):
    """A tensor of a block that several layers use: theirs once, and of each use its adapters.

    A checkpoint may hold a block under each layer that uses it; those after the first are the same.
    """

    def apply(
        self, match: re.Match[str], tensor: ir.TensorProtocol, config: ArchitectureConfig
    ) -> Iterator[Named]:
        """Yield the tensor, unless it is a repetition."""
        assert config.layer_types is not None
        assert config.shared_blocks is not None
        kinds = enumerate(config.layer_types)
        users = [layer for layer, kind in kinds if kind == SHARED_BLOCK_BEFORE_MAMBA2]
        layer, rest = int(match[1]), match[2]
        if layer in users[config.shared_blocks.blocks :]:
            return
        adapter = _ADAPTER.fullmatch(rest)
        if adapter is None:
            part = re.sub(r"^(?:self_attn|feed_forward)\.", "", rest)
            name = f"model.layers.{layer}.mixer.shared_transformer.{part}"
        else:
            projection = f"{adapter['head']}_proj" if adapter["head"] else "gate_up_proj"
            half = ("down", "up")[int(adapter["part"])]
            user = users[int(adapter["use"])]
            name = f"model.layers.{user}.mixer.{projection}_adapter.{half}"
        yield name, DerivedTensor(leaf(tensor), name)


class Zamba2(DecoderArchitecture):
    """Mamba 2 in every layer; before some of them a transformer block that they share."""

    model_type = "zamba2"
    required = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_act": "gelu",
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "max_position_embeddings": 4096,
        "mamba_d_state": 64,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_ngroups": 1,
        "n_mamba_heads": 8,
        "time_step_min": 0.001,
        "add_bias_linear": False,
        "num_mem_blocks": 1,
        "use_shared_attention_adapter": False,
        "adapter_rank": 128,
        "use_mem_rope": False,
        "use_long_context": False,
    }
    fixed: ClassVar[Mapping[str, object]] = {"use_conv_bias": True, "use_shared_mlp_adapter": True}
    # Sizes that transformers computes from others.
    irrelevant = (
        TRAINING_FIELDS
        | IMPLEMENTATION_FIELDS
        | {
            "attention_head_dim",
            "attention_hidden_size",
            "hybrid_layer_ids",
            "kv_channels",
            "mamba_headdim",
            "num_query_groups",
            "rope_parameters",
            "rope_theta",
        }
    )
    renames = (
        (rf"{_LAYER}mamba_decoder\.", r"model.\1.mixer."),
        (rf"{_LAYER}(?=linear\.|shared_transformer\.)", r"model.\1.mixer."),
        (rf"{_LAYER}mamba\.", r"model.\1.mixer."),
        (rf"{_LAYER}input_layernorm\.", r"model.\1.norm."),
        (r"^(?:model\.)?final_layernorm\.", "model.norm."),
        *DecoderArchitecture.renames,
    )
    transforms = (SharedBlockTensor(r"model\.layers\.(\d+)\.mixer\.shared_transformer\.(.+)"),)

    def windows(self, fields: ConfigFields) -> Windows:
        """Return no window, and the type of each layer."""
        stated = read_layer_kinds(fields, _KINDS, "layers_block_type", "layer_types")
        if stated is None:
            raise fields.unfit("layers_block_type", None, f"{' or '.join(_KINDS)} for each layer")
        return Windows(None, stated)

    def rotary(self, fields: ConfigFields, windows: Windows) -> dict[str, Any]:
        """Return the rotary embedding, if attention has positions."""
        if not fields.flag("use_mem_rope"):
            return {"rope_theta": None}
        return super().rotary(fields, windows)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments; attention works on twice the width."""
        hidden = fields.integer("hidden_size")
        heads = fields.integer("num_attention_heads")
        size = 2 * hidden // heads
        if size < 2:
            needed = f"at least num_attention_heads, which is {heads}"
            raise fields.unfit("hidden_size", hidden, needed)
        kv_heads = fields.integer_or("num_key_value_heads", heads)
        adapters = fields.flag("use_shared_attention_adapter")
        if adapters and kv_heads != heads:
            needed = f"num_attention_heads, {heads}, with use_shared_attention_adapter"
            raise fields.unfit("num_key_value_heads", kv_heads, needed)
        windows = self.windows(fields)
        long = fields.flag("use_long_context")
        length = fields.integer("max_position_embeddings")
        return {
            "vocab_size": fields.integer("vocab_size"),
            "hidden_size": hidden,
            "intermediate_size": fields.integer_or("intermediate_size", 4 * hidden),
            "num_hidden_layers": fields.integer("num_hidden_layers"),
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": size,
            "attention_scale": (size / 2) ** -0.5,
            "max_position_embeddings": _LONG_CONTEXT if long else length,
            "hidden_act": fields.text("hidden_act"),
            "rms_norm_eps": fields.number("rms_norm_eps"),
            **self.rotary(fields, windows),
            "layer_layout": "single",
            "layer_types": windows.layer_types,
            "tie_word_embeddings": fields.flag("tie_word_embeddings"),
            "mamba2": _mamba2(fields),
            "shared_blocks": SharedBlockConfig(
                blocks=fields.integer("num_mem_blocks"),
                adapter_rank=fields.integer("adapter_rank"),
                attention_adapter=adapters,
                bias=fields.flag("add_bias_linear"),
            ),
        }


def _mamba2(fields: ConfigFields) -> Mamba2Config:
    heads, bias = fields.integer("n_mamba_heads"), fields.flag("add_bias_linear")
    channels = int(fields.number("mamba_expand") * fields.integer("hidden_size"))
    if heads < 1:
        raise fields.unfit("n_mamba_heads", heads, "an integer of at least 1")
    return Mamba2Config(
        heads=heads,
        head_size=channels // heads,
        groups=fields.integer("mamba_ngroups"),
        state_size=fields.integer("mamba_d_state"),
        conv_taps=fields.integer("mamba_d_conv"),
        projection_bias=bias,
        output_bias=bias,
        time_step_min=fields.number("time_step_min"),
        gated_norm_eps=_NORM_EPS,
    )


ARCHITECTURE = Zamba2()
