"""Gemma 4, text part. Source: `transformers` `Gemma4ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig
from mobius_components.config import FULL_ATTENTION, SLIDING_ATTENTION
from mobius_components.per_layer_config import PerLayerInputConfig
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.architectures.gemma3n_text import PER_LAYER_RENAMES, Gemma3nText
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import TRAINING_FIELDS
from mobius_hf.transforms import Transform

_EXPERTS = (
    r"(router|experts|post_feedforward_layernorm_1|pre_feedforward_layernorm_2|"
    r"post_feedforward_layernorm_2)\."
)


class Gemma4Text(Gemma3nText):
    """Full layers have heads of their own; experts, layer inputs and shared keys are optional."""

    model_type = "gemma4_text"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": 512,
        "attention_bias": False,
        "final_logit_softcapping": None,
        "vocab_size_per_layer_input": 262144,
        "hidden_size_per_layer_input": 256,
        "attention_k_eq_v": False,
        "num_kv_shared_layers": 0,
        "enable_moe_block": False,
        "use_double_wide_mlp": False,
        "tie_word_embeddings": True,
    }
    # The vision tower's tokens see each other; text alone has none.
    fixed: ClassVar[Mapping[str, object]] = {"use_bidirectional_attention": "vision"}
    irrelevant = TRAINING_FIELDS
    renames = (
        (rf"^(?:model\.)?(layers\.\d+)\.{_EXPERTS}", r"model.\1.beside.\2."),
        *PER_LAYER_RENAMES,
        *DecoderArchitecture.renames,
    )
    transforms: ClassVar[tuple[Transform, ...]] = ()

    def feed_forward_size(self, fields: ConfigFields) -> int:
        """Return the width of the layers that have keys of their own."""
        return fields.integer("intermediate_size")

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments that Gemma 3n has too, the heads, and what is optional."""
        arguments = self.common(fields)
        layers, shared = arguments["num_hidden_layers"], arguments["num_kv_shared_layers"]
        size = arguments["intermediate_size"]
        wide = 2 * size if fields.flag("use_double_wide_mlp") else size
        width = fields.value("hidden_size_per_layer_input")
        inputs = {
            "vocab_size": fields.integer("vocab_size_per_layer_input"),
            "hidden_size": width,
        }
        return arguments | {
            "layer_layout": "gemma4",
            "heads_by_layer_type": {FULL_ATTENTION: _full_heads(fields, arguments)},
            "value_is_key": (FULL_ATTENTION,) if fields.flag("attention_k_eq_v") else (),
            "intermediate_sizes": (size,) * (layers - shared) + (wide,) * shared,
            "per_layer_input": PerLayerInputConfig(**inputs) if width else None,
            "moe": _mixture(fields, layers) if fields.flag("enable_moe_block") else None,
        }


def _full_heads(fields: ConfigFields, arguments: Mapping[str, Any]) -> tuple[int, int]:
    """Return number and width of the key and value heads of full layers.

    transformers 5 writes what differs from the other fields layer by layer; before that, there
    were two fields.
    """
    heads, size = arguments["num_key_value_heads"], arguments["head_dim"]
    own = fields.value("per_layer_config")
    global_heads, global_size = (
        fields.optional_integer("num_global_key_value_heads"),
        fields.optional_integer("global_head_dim"),
    )
    if own is None:
        use = global_heads if fields.flag("attention_k_eq_v") else None
        return use or heads, global_size or size
    full: dict[str, Any] = dict(next(iter(own.values()), {}))
    by_layer = {int(index): each for index, each in own.items()}  # written as "05"
    for index, kind in enumerate(arguments["layer_types"]):
        if by_layer.get(index, {}) != (full if kind == FULL_ATTENTION else {}):
            needed = f"the same for every full layer, and nothing for those of {SLIDING_ATTENTION}"
            raise fields.unfit("per_layer_config", own, needed)
    found = full.pop("num_key_value_heads", heads), full.pop("head_dim", size)
    if full:
        raise fields.unfit("per_layer_config", own, "num_key_value_heads and head_dim alone")
    return found


def _mixture(fields: ConfigFields, layers: int) -> MixtureConfig:
    """Return the experts, which lie beside the feed-forward layers rather than in their place."""
    return MixtureConfig(
        num_experts=fields.integer("num_experts"),
        num_experts_per_tok=fields.integer("top_k_experts"),
        moe_intermediate_size=fields.integer("moe_intermediate_size"),
        sparse_layers=(False,) * layers,
    )


ARCHITECTURE = Gemma4Text()
