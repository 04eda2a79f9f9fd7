"""RecurrentGemma. Source: `transformers` `RecurrentGemmaForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from mobius_components import RgLruConfig
from mobius_components.config import RG_LRU, SLIDING_ATTENTION
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.transforms import PlusOne
from mobius_hf.windows import Windows

_LAYER = r"^(?:model\.)?(layers\.\d+)\."
_KINDS = {"recurrent": RG_LRU, "attention": SLIDING_ATTENTION}


class RecurrentGemma(DecoderArchitecture):
    """Gated linear recurrences, and attention with a window in every third layer."""

    model_type = "recurrent_gemma"
    partial_rotary = True
    activation_field = "hidden_activation"
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "attention_window_size": 2048,
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "partial_rotary_factor": 0.5,
        "block_types": ["recurrent", "recurrent", "attention"],
        "attention_bias": False,
        "max_position_embeddings": 8192,
    }
    fixed: ClassVar[Mapping[str, object]] = {"embeddings_scale_by_sqrt_dim": True}
    irrelevant = frozenset({"final_w_init_variance_scale", "hidden_act", "w_init_variance_scale"})
    renames = (
        (rf"{_LAYER}temporal_block\.([qkvo]_proj)\.", r"model.\1.self_attn.\2."),
        (rf"{_LAYER}temporal_pre_norm\.", r"model.\1.input_layernorm."),
        (rf"{_LAYER}channel_pre_norm\.", r"model.\1.post_attention_layernorm."),
        (rf"{_LAYER}mlp_block\.", r"model.\1.mlp."),
        (r"^(?:model\.)?final_norm\.", "model.norm."),
        *DecoderArchitecture.renames,
    )
    transforms = (PlusOne(r"model\.norm\.weight|.*layernorm\.weight"),)

    def windows(self, fields: ConfigFields) -> Windows:
        """Return the window of attention, and the type of each layer."""
        turns, layers = fields.words("block_types", _KINDS), fields.integer("num_hidden_layers")
        if not turns:
            raise fields.unfit("block_types", turns, f"at least one of {' or '.join(_KINDS)}")
        kinds = tuple(_KINDS[turns[n % len(turns)]] for n in range(layers))
        return Windows(fields.integer("attention_window_size"), kinds)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, those of Gemma and the recurrence."""
        hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
        inner = fields.integer("intermediate_size")
        return super().arguments(fields) | {
            "head_dim": fields.integer_or("head_dim", hidden // heads),
            "intermediate_size": inner // 2,
            "mlp_bias": True,
            "attention_bias": fields.flag("attention_bias"),
            "attention_output_bias": True,
            "embedding_multiplier": _in_bfloat16(hidden**0.5),
            "final_logit_softcapping": fields.number("logits_soft_cap"),
            "rg_lru": RgLruConfig(
                width=fields.integer_or("lru_width", hidden),
                blocks=heads,
                conv_taps=fields.integer("conv1d_width"),
                activation=fields.text("hidden_activation"),
            ),
        }


def _in_bfloat16(value: float) -> float:
    """Return `value` with the digits that transformers keeps it in."""
    return float(np.float32(value).astype(ir.DataType.BFLOAT16.numpy()))


ARCHITECTURE = RecurrentGemma()
