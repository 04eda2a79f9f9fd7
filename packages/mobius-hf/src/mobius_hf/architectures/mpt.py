"""MPT. Source: `transformers` `MptForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from onnxscript import nn

from mobius_components import ArchitectureConfig
from mobius_components.models import CausalLMModel
from mobius_hf.architectures.base import Architecture
from mobius_hf.config import ConfigFields
from mobius_hf.transforms import Split, qkv_sizes

_BLOCK = r"^(?:transformer\.)?blocks\.(\d+)"
# What `attn_config` may say; the rest is read or does not matter.
_ATTENTION = {
    "alibi": True,
    "attn_type": "multihead_attention",
    "attn_uses_sequence_id": False,
    "prefix_lm": False,
    "qk_ln": False,
}
_READ = frozenset({"alibi_bias_max", "clip_qkv", "softmax_scale"})
_IRRELEVANT = frozenset({"attn_impl", "attn_pdrop", "model_type"})


class Mpt(Architecture):
    """ALiBi, layer norms without bias, no other bias; queries, keys and values are one matrix."""

    model_type = "mpt"
    required = ("vocab_size", "d_model", "n_layers", "n_heads")
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_seq_len": 2048,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    }
    fixed: ClassVar[Mapping[str, object]] = {"expansion_ratio": 4, "no_bias": True}
    # Training, and the positions that ALiBi replaces.
    irrelevant = frozenset(
        {
            "emb_pdrop",
            "embedding_fraction",
            "init_config",
            "init_device",
            "learned_pos_emb",
            "tokenizer_name",
            "verbose",
        }
    )
    renames = (
        (_BLOCK + r"\.norm_1\.", r"model.layers.\1.input_layernorm."),
        (_BLOCK + r"\.norm_2\.", r"model.layers.\1.post_attention_layernorm."),
        (_BLOCK + r"\.attn\.out_proj\.", r"model.layers.\1.self_attn.o_proj."),
        (_BLOCK + r"\.attn\.", r"model.layers.\1.self_attn."),
        (_BLOCK + r"\.ffn\.", r"model.layers.\1.mlp."),
        (r"^(?:transformer\.)?wte\.", "model.embed_tokens."),
        (r"^(?:transformer\.)?norm_f\.", "model.norm."),
    )
    transforms = (
        Split(
            r"(.*\.self_attn)\.Wqkv\.weight",
            (r"\1.q_proj.weight", r"\1.k_proj.weight", r"\1.v_proj.weight"),
            qkv_sizes,
        ),
    )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return all arguments, from MPT's own names."""
        width, attention = fields.integer("d_model"), _attention(fields)
        norm = fields.value("norm_type")
        if norm not in (None, "layernorm", "low_precision_layernorm"):
            raise fields.unfit("norm_type", norm, "layernorm or low_precision_layernorm")
        return {
            "vocab_size": fields.integer("vocab_size"),
            "hidden_size": width,
            "intermediate_size": 4 * width,
            "num_hidden_layers": fields.integer("n_layers"),
            "num_attention_heads": fields.integer("n_heads"),
            "max_position_embeddings": fields.integer("max_seq_len"),
            "hidden_act": "gelu",
            "rms_norm_eps": fields.number("layer_norm_epsilon"),
            "tie_word_embeddings": fields.flag("tie_word_embeddings"),
            "position_embedding": "alibi",
            # As the authors' own code reads it; transformers takes 8, whatever the file says.
            "alibi_bias_max": float(attention.get("alibi_bias_max", 8)),
            "attention_scale": attention.get("softmax_scale"),
            # transformers does not clip with 0 either.
            "qkv_clip": attention.get("clip_qkv") or None,
            "rope_theta": None,
            "norm_type": "layer_no_bias",
            "mlp_gated": False,
        }

    def make_module(self, config: ArchitectureConfig) -> nn.Module:
        """Return a `CausalLMModel`."""
        return CausalLMModel(config)


def _attention(fields: ConfigFields) -> Mapping[str, Any]:
    """Return `attn_config`, whose every field is known.

    Raises:
        CheckpointConfigError: if a field has a value that this family cannot be built for.
    """
    attention = fields.value("attn_config") or {}
    stated = fields.raw.get("attn_config") or {}
    if not isinstance(attention, Mapping) or not isinstance(stated, Mapping):
        raise fields.unfit("attn_config", stated, "an object")
    for name, value in stated.items():
        if name in _ATTENTION and value != _ATTENTION[name]:
            raise fields.unfit(f"attn_config.{name}", value, repr(_ATTENTION[name]))
        if name not in _ATTENTION.keys() | _READ | _IRRELEVANT and name not in attention:
            raise fields.unfit(f"attn_config.{name}", value, "no such field")
    result: Mapping[str, Any] = attention
    return result


ARCHITECTURE = Mpt()
