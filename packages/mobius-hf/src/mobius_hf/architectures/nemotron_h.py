"""Nemotron-H and Nemotron 3. Source: `transformers` `NemotronHForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import Mamba2Config, MixtureConfig
from mobius_components.config import FEED_FORWARD, FULL_ATTENTION, MAMBA2
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.layer_kinds import read_layer_kinds
from mobius_hf.mixtures import TRAINING_FIELDS as EXPERT_TRAINING_FIELDS
from mobius_hf.mixtures import deepseek_router
from mobius_hf.stacks import PLAIN_STACKS
from mobius_hf.state_spaces import IMPLEMENTATION_FIELDS, TRAINING_FIELDS

_EXPERTS = "experts"
_KINDS = {
    "linear_attention": MAMBA2,
    "mamba": MAMBA2,
    "full_attention": FULL_ATTENTION,
    "attention": FULL_ATTENTION,
    "mlp": FEED_FORWARD,
    "moe": _EXPERTS,
}
_LETTERS = {"M": MAMBA2, "*": FULL_ATTENTION, "-": FEED_FORWARD, "E": _EXPERTS}
_MIXER = r"^(?:backbone\.|model\.)?(layers\.\d+)\.mixer\."
_FED = r"up_proj|down_proj|gate|experts|shared_experts|fc[12]_latent_proj"


class NemotronH(DecoderArchitecture):
    """One part a layer: Mamba 2, attention without positions, feed-forward or experts."""

    model_type = "nemotron_h"
    required = ("vocab_size", "hidden_size", "num_attention_heads")
    defaults: ClassVar[Mapping[str, Any]] = {
        "tie_word_embeddings": False,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "intermediate_size": 21504,
        "mlp_hidden_act": "relu2",
        "mlp_bias": False,
        "ssm_state_size": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "mamba_hidden_act": "silu",
        "n_groups": 8,
        "conv_kernel": 4,
        "time_step_min": 0.001,
        "use_conv_bias": True,
        "use_bias": False,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "layer_norm_epsilon": 1e-5,
    }
    activation_field = "mlp_hidden_act"
    epsilon_field = "layer_norm_epsilon"
    fixed: ClassVar[Mapping[str, object]] = {"sliding_window": None, "attention_bias": False}
    irrelevant = (
        EXPERT_TRAINING_FIELDS
        | TRAINING_FIELDS
        | IMPLEMENTATION_FIELDS
        | {
            # transformers takes widths from heads, and no upper limit of time steps.
            "expand",
            "mamba_expand",
            "time_step_limit",
            "mamba_dt_limit",
            "time_step_rank",
            "mamba_proj_bias",
            "n_shared_experts",
            "moe_shared_expert_overlap",
            "num_hidden_layers",
            # transformers reads layer_norm_epsilon.
            "norm_eps",
            "rms_norm_eps",
            # Attention has no positions; further tokens at once are not predicted.
            "partial_rotary_factor",
            "rope_theta",
            "num_nextn_predict_layers",
            "mtp_layers_block_type",
            "mtp_hybrid_override_pattern",
        }
    )
    left_out = (*DecoderArchitecture.left_out, r"^mtp\.")
    stacks = PLAIN_STACKS
    renames = (
        (rf"{_MIXER}(?=(?:{_FED})\b)", r"model.\1.mixer.mlp."),
        (r"^(?:backbone\.|model\.)?embeddings?\.weight$", "model.embed_tokens.weight"),
        (r"^(?:backbone\.|model\.)?norm_f\.", "model.norm."),
        (r"^backbone\.", "model."),
        *DecoderArchitecture.renames,
    )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments; layers are those that the pattern has."""
        kinds = _kinds(fields)
        sparse = tuple(kind == _EXPERTS for kind in kinds)
        return {
            "vocab_size": fields.integer("vocab_size"),
            "hidden_size": fields.integer("hidden_size"),
            "intermediate_size": fields.integer("intermediate_size"),
            "num_hidden_layers": len(kinds),
            "num_attention_heads": fields.integer("num_attention_heads"),
            "num_key_value_heads": fields.optional_integer("num_key_value_heads"),
            "head_dim": _head_size(fields),
            "max_position_embeddings": fields.integer("max_position_embeddings"),
            "hidden_act": fields.text("mlp_hidden_act"),
            "mlp_gated": False,
            "mlp_bias": fields.flag("mlp_bias"),
            "rms_norm_eps": fields.number("layer_norm_epsilon"),
            "rope_theta": None,
            "layer_layout": "single",
            "layer_types": tuple(FEED_FORWARD if kind == _EXPERTS else kind for kind in kinds),
            "tie_word_embeddings": fields.flag("tie_word_embeddings"),
            "mamba2": _mamba2(fields),
            "moe": _experts(fields, sparse) if any(sparse) else None,
        }


def _kinds(fields: ConfigFields) -> tuple[str, ...]:
    """Return what each layer is, from its name, or from its letter in older files."""
    kinds = read_layer_kinds(fields, _KINDS, "layers_block_type", "layer_types")
    pattern = fields.value("hybrid_override_pattern")
    if kinds is not None:
        return kinds
    if not isinstance(pattern, str) or not set(pattern) <= _LETTERS.keys():
        needed = f"a letter of {' '.join(_LETTERS)} for each layer, or layers_block_type"
        raise fields.unfit("hybrid_override_pattern", pattern, needed)
    return tuple(_LETTERS[letter] for letter in pattern)


def _head_size(fields: ConfigFields) -> int:
    """Return the width of a head, which older files call otherwise."""
    size, older = fields.integer("head_dim"), fields.optional_integer("attention_head_dim")
    if older not in (None, size):
        raise fields.unfit("attention_head_dim", older, f"head_dim, which is {size}")
    return size


def _mamba2(fields: ConfigFields) -> Mamba2Config:
    bias = fields.flag("use_bias")

    def renamed(older: str, name: str) -> Any:
        value = fields.value(older)
        return fields.value(name) if value is None else value

    return Mamba2Config(
        heads=fields.integer("mamba_num_heads"),
        head_size=fields.integer("mamba_head_dim"),
        groups=renamed("mamba_n_groups", "n_groups"),
        state_size=fields.integer("ssm_state_size"),
        conv_taps=renamed("mamba_d_conv", "conv_kernel"),
        conv_bias=renamed("mamba_conv_bias", "use_conv_bias"),
        projection_bias=bias,
        output_bias=bias,
        activation=fields.text("mamba_hidden_act"),
        time_step_min=renamed("mamba_dt_min", "time_step_min"),
        gated_norm_eps=fields.number("layer_norm_epsilon"),
    )


def _experts(fields: ConfigFields, sparse: tuple[bool, ...]) -> MixtureConfig:
    return MixtureConfig(
        num_experts=fields.integer("n_routed_experts"),
        num_experts_per_tok=fields.integer("num_experts_per_tok"),
        moe_intermediate_size=fields.integer("moe_intermediate_size"),
        sparse_layers=sparse,
        router=deepseek_router(fields),
        moe_latent_size=fields.optional_integer("moe_latent_size"),
        shared_expert_intermediate_size=fields.integer("moe_shared_expert_intermediate_size"),
    )


ARCHITECTURE = NemotronH()
