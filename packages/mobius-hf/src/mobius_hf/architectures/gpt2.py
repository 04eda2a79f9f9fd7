"""GPT-2. Source: `transformers` `GPT2LMHeadModel`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from onnxscript import nn

from mobius_components import ArchitectureConfig
from mobius_components.models import CausalLMModel
from mobius_hf.architectures.base import Architecture
from mobius_hf.config import ConfigFields
from mobius_hf.transforms import Split, Transform, Transposed, qkv_sizes

_LAYER = r"^(?:transformer\.)?h\.(\d+)"


class GPT2(Architecture):
    """Learned positions, layer norms; matrices are stored `[in, out]`."""

    model_type = "gpt2"
    required = ("vocab_size", "n_embd", "n_layer", "n_head")
    defaults: ClassVar[Mapping[str, Any]] = {
        "n_positions": 1024,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    }
    fixed: ClassVar[Mapping[str, object]] = {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    }
    irrelevant = frozenset({"n_ctx", "reorder_and_upcast_attn", "task_specific_params"})
    left_out = (r"\.attn\.(?:masked_)?bias$",)
    renames = (
        (_LAYER + r"\.ln_1\.", r"model.layers.\1.input_layernorm."),
        (_LAYER + r"\.ln_2\.", r"model.layers.\1.post_attention_layernorm."),
        (_LAYER + r"\.attn\.c_proj\.", r"model.layers.\1.self_attn.o_proj."),
        (_LAYER + r"\.attn\.", r"model.layers.\1.self_attn."),
        (_LAYER + r"\.mlp\.c_fc\.", r"model.layers.\1.mlp.up_proj."),
        (_LAYER + r"\.mlp\.c_proj\.", r"model.layers.\1.mlp.down_proj."),
        (r"^(?:transformer\.)?wte\.", "model.embed_tokens."),
        (r"^(?:transformer\.)?wpe\.", "model.embed_positions."),
        (r"^(?:transformer\.)?ln_f\.", "model.norm."),
    )
    transforms: ClassVar[tuple[Transform, ...]] = (
        Split(
            r"(.*\.self_attn)\.c_attn\.(.*)",
            (r"\1.q_proj.\2", r"\1.k_proj.\2", r"\1.v_proj.\2"),
            qkv_sizes,
            transposed=True,
        ),
        Transposed(r".*\.(?:o_proj|up_proj|down_proj)\.weight"),
    )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return all arguments, from GPT-2's own names."""
        width = fields.integer("n_embd")
        return {
            "vocab_size": fields.integer("vocab_size"),
            "hidden_size": width,
            "intermediate_size": fields.integer_or("n_inner", 4 * width),
            "num_hidden_layers": fields.integer("n_layer"),
            "num_attention_heads": fields.integer("n_head"),
            "max_position_embeddings": fields.integer("n_positions"),
            "hidden_act": fields.text("activation_function"),
            "rms_norm_eps": fields.number("layer_norm_epsilon"),
            "tie_word_embeddings": fields.flag("tie_word_embeddings"),
            "position_embedding": "learned",
            "rope_theta": None,
            "norm_type": "layer",
            "mlp_gated": False,
            "attention_bias": True,
            "attention_output_bias": True,
            "mlp_bias": True,
        }

    def make_module(self, config: ArchitectureConfig) -> nn.Module:
        """Return a `CausalLMModel`."""
        return CausalLMModel(config)


ARCHITECTURE = GPT2()
