"""MiniCPM 3. Source: `transformers` `MiniCPM3ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components.config import FULL_ATTENTION, LATENT_ATTENTION
from mobius_components.latent_attention_config import LatentAttentionConfig
from mobius_hf.architectures.llama import Llama
from mobius_hf.config import ConfigFields
from mobius_hf.rope import read_rope
from mobius_hf.windows import Windows


class MiniCPM3(Llama):
    """Llama with latent attention, and scaled embeddings, branches and logits."""

    model_type = "minicpm3"
    required = (*Llama.required, "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")
    defaults: ClassVar[Mapping[str, Any]] = {
        **Llama.defaults,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "q_lora_rank": 768,
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 256,
    }
    # `head_dim` is the rotating part, `qk_head_dim` the whole, both of which follow.
    irrelevant = frozenset({"head_dim", "qk_head_dim"})

    def rotary(self, fields: ConfigFields, windows: Windows) -> dict[str, Any]:
        """Return the rotary embedding of the rotating part of a head."""
        rope = read_rope(fields, set(windows.layer_types))
        return {"rope_theta": rope.theta, "rope_scaling": rope.scaling}

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Llama, those of attention, and the scales."""
        arguments = super().arguments(fields)
        hidden, layers = arguments["hidden_size"], arguments["num_hidden_layers"]
        heads = arguments["num_attention_heads"]
        if arguments["num_key_value_heads"] not in (None, heads):
            found = arguments["num_key_value_heads"]
            raise fields.unfit("num_key_value_heads", found, f"num_attention_heads, {heads}")
        latent = LatentAttentionConfig(
            q_lora_rank=fields.optional_integer("q_lora_rank"),
            kv_lora_rank=fields.integer("kv_lora_rank"),
            qk_rope_head_dim=fields.integer("qk_rope_head_dim"),
            qk_nope_head_dim=fields.integer("qk_nope_head_dim"),
            v_head_dim=fields.integer_or("v_head_dim", hidden // heads),
        )
        kinds = {FULL_ATTENTION: LATENT_ATTENTION}
        return arguments | {
            "head_dim": latent.qk_head_dim,
            "latent_attention": latent,
            "layer_types": tuple(kinds[kind] for kind in arguments["layer_types"]),
            "attention_scale": latent.qk_head_dim**-0.5,
            "embedding_multiplier": fields.number("scale_emb"),
            "residual_multiplier": fields.number("scale_depth") / layers**0.5,
            "logits_scaling": hidden * fields.reciprocal("dim_model_base"),
        }


ARCHITECTURE = MiniCPM3()
