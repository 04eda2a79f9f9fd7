"""StarCoder 2. Source: `transformers` `Starcoder2ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.windows import Windows, same_for_all


class Starcoder2(DecoderArchitecture):
    """Layer norms, a feed-forward layer without gate, biases everywhere."""

    model_type = "starcoder2"
    epsilon_field = "norm_epsilon"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "hidden_act": "gelu_pytorch_tanh",
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "norm_epsilon": 1e-5,
        "use_bias": True,
    }
    # Older files say so what transformers takes for granted, or under names that it does not read.
    fixed: ClassVar[Mapping[str, object]] = {
        "mlp_type": "default",
        "norm_type": "layer_norm",
        "scale_attn_weights": True,
    }
    irrelevant = frozenset(
        {
            "activation_function",
            "attention_softmax_in_fp32",
            "layer_norm_epsilon",
            "scale_attention_softmax_in_fp32",
        }
    )
    renames = (
        (r"^(?:model\.)?(layers\.\d+\.mlp)\.c_fc\.", r"model.\1.up_proj."),
        (r"^(?:model\.)?(layers\.\d+\.mlp)\.c_proj\.", r"model.\1.down_proj."),
        *DecoderArchitecture.renames,
    )

    def windows(self, fields: ConfigFields) -> Windows:
        """Return `sliding_window` for every layer."""
        return same_for_all(fields, fields.optional_integer("sliding_window"))

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the norms and the biases."""
        bias = fields.flag("use_bias")
        return super().arguments(fields) | {
            "norm_type": "layer",
            "mlp_gated": False,
            "attention_bias": bias,
            "attention_output_bias": bias,
            "mlp_bias": bias,
        }


ARCHITECTURE = Starcoder2()
