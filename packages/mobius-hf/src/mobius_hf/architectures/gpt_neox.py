"""GPT-NeoX and Pythia. Source: `transformers` `GPTNeoXForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.transforms import SplitGroups

_LAYER = r"^(?:gpt_neox\.)?(layers\.\d+)"


class GPTNeoX(DecoderArchitecture):
    """Two layer norms side by side; queries, keys and values of a head are stored together."""

    model_type = "gpt_neox"
    partial_rotary = True
    epsilon_field = "layer_norm_eps"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "hidden_act": "gelu",
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "use_parallel_residual": True,
        "attention_bias": True,
        "partial_rotary_factor": 0.25,
    }
    irrelevant = frozenset({"rotary_emb_base", "rotary_pct"})
    left_out = (r"attention\.(?:masked_)?bias$", *DecoderArchitecture.left_out)
    renames = (
        (_LAYER + r"\.attention\.dense\.", r"model.\1.self_attn.o_proj."),
        (_LAYER + r"\.attention\.", r"model.\1.self_attn."),
        (_LAYER + r"\.mlp\.dense_h_to_4h\.", r"model.\1.mlp.up_proj."),
        (_LAYER + r"\.mlp\.dense_4h_to_h\.", r"model.\1.mlp.down_proj."),
        (_LAYER + r"\.", r"model.\1."),
        (r"^(?:gpt_neox\.)?embed_in\.", "model.embed_tokens."),
        (r"^(?:gpt_neox\.)?final_layer_norm\.", "model.norm."),
        (r"^embed_out\.", "lm_head."),
    )
    transforms = (
        SplitGroups(
            r"(.*\.self_attn)\.query_key_value\.(.*)",
            (r"\1.q_proj.\2", r"\1.k_proj.\2", r"\1.v_proj.\2"),
        ),
    )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the layout and the biases."""
        parallel = fields.flag("use_parallel_residual")
        attention_bias = fields.flag("attention_bias")
        return super().arguments(fields) | {
            "norm_type": "layer",
            "layer_layout": "parallel_two_norms" if parallel else "pre_norm",
            "mlp_gated": False,
            "attention_bias": attention_bias,
            "attention_output_bias": attention_bias,
            "mlp_bias": True,
        }


ARCHITECTURE = GPTNeoX()
