"""dots.llm1. Source: `transformers` `Dots1ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components.config import FULL_ATTENTION, SLIDING_ATTENTION
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.mixtures import TRAINING_FIELDS, deepseek_mixture, dense_before
from mobius_hf.stacks import GATED_STACKS
from mobius_hf.windows import Windows, by_layer_types

# What the checkpoints' own code calls sigmoid scores with a bias for the choice; none said is that.
_SCORINGS = (None, "sigmoid", "noaux_tc")


class Dots1(DecoderArchitecture):
    """Qwen3's attention, DeepSeek-V3's experts."""

    model_type = "dots1"
    required = (
        *DecoderArchitecture.required,
        "n_routed_experts|num_local_experts",
        "num_experts_per_tok",
        "n_shared_experts",
        "moe_intermediate_size",
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 2048,
        "num_key_value_heads": 32,
        "attention_bias": False,
        "sliding_window": 4096,
        "max_window_layers": 62,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 0,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    }
    fixed: ClassVar[Mapping[str, object]] = {
        "moe_layer_freq": 1,
        "topk_method": "noaux_tc",
        "use_sliding_window": False,
    }
    irrelevant = TRAINING_FIELDS
    stacks = GATED_STACKS

    def windows(self, fields: ConfigFields) -> Windows:
        """Return the windows: layers from `max_window_layers` on slide, unless the file says."""
        first = fields.integer("max_window_layers")
        if fields.value("layer_types") is not None:
            return by_layer_types(fields)
        window = fields.optional_integer("sliding_window")
        kinds = tuple(
            SLIDING_ATTENTION if window is not None and layer >= first else FULL_ATTENTION
            for layer in range(fields.integer("num_hidden_layers"))
        )
        return Windows(window if SLIDING_ATTENTION in kinds else None, kinds)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the norms, the biases and the experts."""
        attention_bias = fields.flag("attention_bias")
        scoring = fields.value("scoring_func")
        if scoring not in _SCORINGS:
            raise fields.unfit("scoring_func", scoring, "'sigmoid' or 'noaux_tc', which is one too")

        return super().arguments(fields) | {
            "qk_norm": "head",
            "attention_bias": attention_bias,
            "attention_output_bias": attention_bias,
            "moe": deepseek_mixture(fields, dense_before(fields)),
        }


ARCHITECTURE = Dots1()
