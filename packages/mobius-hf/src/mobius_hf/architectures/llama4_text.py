"""Llama 4, text part. Source: `transformers` `Llama4ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import MixtureConfig, RouterConfig
from mobius_components.config import CHUNKED_ATTENTION, FULL_ATTENTION
from mobius_components.query_temperature_config import QueryTemperatureConfig
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import TRAINING_FIELDS
from mobius_hf.transforms import Transposed
from mobius_hf.windows import Windows

_LAYER = r"^(?:language_model\.)?(?:model\.)?(layers\.\d+)\.feed_forward\."


class Llama4Text(DecoderArchitecture):
    """Most layers rotate and attend in chunks, the others do neither and have a temperature.

    The norm of queries and keys comes after the rotation, without weights, where there is one.
    Experts multiply what goes into them by their share, a sigmoid of the logit.
    """

    model_type = "llama4_text"
    required = (
        *DecoderArchitecture.required,
        "num_local_experts",
        "num_experts_per_tok",
        "intermediate_size_mlp",
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "interleave_moe_layer_step": 1,
        "use_qk_norm": True,
        "no_rope_layer_interval": 4,
        "attention_chunk_size": 8192,
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "attn_scale": 0.1,
        "attention_bias": False,
    }
    fixed: ClassVar[Mapping[str, object]] = {"for_llm_compressor": False}
    irrelevant = TRAINING_FIELDS
    renames = (
        (_LAYER + r"router\.", r"model.\1.mlp.gate."),
        (_LAYER + r"shared_expert\.", r"model.\1.mlp.shared_experts."),
        (_LAYER, r"model.\1.mlp."),
        (r"^language_model\.(?=model\.|lm_head\.)", ""),
        *DecoderArchitecture.renames,
    )
    transforms = (Transposed(r".*\.experts\.(?:gate_up|down)_proj"),)

    def windows(self, fields: ConfigFields) -> Windows:
        """Return which layers attend in chunks: those that rotate, if there is a chunk size."""
        chunk = fields.optional_integer("attention_chunk_size")
        stated = fields.value("layer_types")
        if stated is None:
            stated = [
                CHUNKED_ATTENTION if rotates and chunk is not None else FULL_ATTENTION
                for rotates in _rotating(fields)
            ]
        known = (FULL_ATTENTION, *((CHUNKED_ATTENTION,) if chunk is not None else ()))
        if any(kind not in known for kind in stated):
            raise fields.unfit("layer_types", stated, f"{' or '.join(known)} for each layer")
        return Windows(None, tuple(stated))

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, those of attention, and the experts."""
        arguments, rotating = super().arguments(fields), _rotating(fields)
        bias = fields.flag("attention_bias")
        temperature = QueryTemperatureConfig(
            beta=fields.number("attn_scale"),
            length=fields.integer("floor_scale"),
            offset=1,
            without_rotation=True,
        )
        inner = arguments["intermediate_size"]
        moe = MixtureConfig(
            num_experts=fields.integer("num_local_experts"),
            num_experts_per_tok=fields.integer("num_experts_per_tok"),
            moe_intermediate_size=inner,
            sparse_layers=_sparse(fields),
            router=RouterConfig(scoring="sigmoid"),
            scale_input=True,
            shared_expert_intermediate_size=inner,
        )
        return arguments | {
            "intermediate_size": fields.integer("intermediate_size_mlp"),
            "rope_interleaved": True,
            "rope_layers": rotating,
            "attention_chunk_size": fields.optional_integer("attention_chunk_size"),
            "attention_bias": bias,
            "attention_output_bias": bias,
            "qk_norm": "head" if fields.flag("use_qk_norm") else None,
            "qk_norm_type": "rms_plain",
            "qk_norm_after_rotary": True,
            "qk_norm_where_rotating": True,
            "query_temperature": temperature if fields.flag("attn_temperature_tuning") else None,
            "moe": moe,
        }


def _rotating(fields: ConfigFields) -> tuple[bool, ...]:
    """Return whether each layer rotates: `no_rope_layers` says 1 where it does."""
    layers, interval = fields.integer("num_hidden_layers"), fields.integer("no_rope_layer_interval")
    stated = fields.value("no_rope_layers")
    if not stated:
        if interval < 1:
            raise fields.unfit("no_rope_layer_interval", interval, "an integer of at least 1")
        return tuple((layer + 1) % interval != 0 for layer in range(layers))
    if not isinstance(stated, list | tuple) or len(stated) < layers:
        raise fields.unfit("no_rope_layers", stated, f"a list with {layers} entries")
    return tuple(bool(each) for each in stated[:layers])


def _sparse(fields: ConfigFields) -> tuple[bool, ...]:
    """Return whether each layer has experts: every `interleave_moe_layer_step`-th, or as listed."""
    layers, step = fields.integer("num_hidden_layers"), fields.integer("interleave_moe_layer_step")
    stated = fields.layer_numbers("moe_layers")
    if step < 1:
        raise fields.unfit("interleave_moe_layer_step", step, "an integer of at least 1")
    sparse = range(step - 1, layers, step) if stated is None else stated
    return tuple(layer in sparse for layer in range(layers))


ARCHITECTURE = Llama4Text()
