"""Fields of state-space layers in a config -> `Mamba2Config`; and models of such layers alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import Mamba2Config
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields

TRAINING_FIELDS = frozenset(
    {
        "rescale_prenorm_residual",
        "time_step_floor",
        "time_step_init_scheme",
        "time_step_max",
        "time_step_min",
        "time_step_scale",
        "z_loss_coefficient",
    }
)
"""Fields that matter when weights are initialised or trained, and nowhere else."""

IMPLEMENTATION_FIELDS = frozenset(
    {
        "chunk_size",
        "fused_add_norm",
        "mamba_chunk_size",
        "mamba_ssm_cache_dtype",
        "num_logits_to_keep",
        "residual_in_fp32",
        "use_associative_scan",
        "use_falcon_mambapy",
        "use_mamba_kernels",
        "use_mambapy",
        "use_mem_eff_path",
    }
)
"""Fields that choose between ways to compute the same.

The stream between layers has the dtype of the build, whatever `residual_in_fp32` says; states are
float32 in any case.
"""

MAMBA2_DEFAULTS: Mapping[str, Any] = {
    "mamba_n_heads": 128,
    "mamba_d_head": "auto",
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "time_step_limit": [0.0, math.inf],
}
"""Values of the fields that `read_mamba2` reads."""


def read_mamba2(fields: ConfigFields, *, channels: int | None = None) -> Mamba2Config:
    """Return the state space of a config that spells its fields as Bamba does.

    Args:
        fields: The config.
        channels: Width of what is scanned; `None` for `mamba_expand * hidden_size`.
    """
    expanded = int(fields.number("mamba_expand") * fields.integer("hidden_size"))
    channels = channels or expanded
    heads = fields.integer("mamba_n_heads")
    if heads < 1:
        raise fields.unfit("mamba_n_heads", heads, "an integer of at least 1")
    auto = fields.value("mamba_d_head") == "auto"
    size = channels // heads if auto else fields.integer("mamba_d_head")
    if heads * size != channels:
        raise fields.unfit("mamba_d_head", size, f"{channels} / mamba_n_heads, which is {heads}")
    bias = fields.flag("mamba_proj_bias")
    least, largest = read_time_step_limit(fields)
    return Mamba2Config(
        heads=heads,
        head_size=size,
        groups=fields.integer("mamba_n_groups"),
        state_size=fields.integer("mamba_d_state"),
        conv_taps=fields.integer("mamba_d_conv"),
        conv_bias=fields.flag("mamba_conv_bias"),
        projection_bias=bias,
        output_bias=bias,
        activation=fields.text("hidden_act"),
        gated_norm_eps=fields.number("rms_norm_eps"),
        time_step_min=least,
        time_step_max=largest,
    )


def read_time_step_limit(fields: ConfigFields) -> tuple[float, float]:
    """Return the least and the largest time step."""
    if fields.value("time_step_limit") is None:
        return 0.0, math.inf
    low, high = fields.numbers("time_step_limit", 2)
    return low, high


def read_rank(fields: ConfigFields, name: str) -> int:
    """Return the rank that time steps are projected from, a sixteenth of the width by default."""
    if fields.value(name) == "auto":
        return math.ceil(fields.integer("hidden_size") / 16)
    return fields.integer(name)


class StateSpaceArchitecture(DecoderArchitecture):
    """A decoder whose layers are one norm and one state space each."""

    required = ("vocab_size", "hidden_size", "num_hidden_layers")
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_act": "silu",
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "expand": 2,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": "auto",
    }
    epsilon_field = "layer_norm_epsilon"
    irrelevant = TRAINING_FIELDS | IMPLEMENTATION_FIELDS
    renames = (
        (r"^(?:backbone\.|model\.)?embeddings?\.weight$", "model.embed_tokens.weight"),
        (r"^(?:backbone\.|model\.)?norm_f\.", "model.norm."),
        (r"^backbone\.", "model."),
        *DecoderArchitecture.renames,
    )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments that these families share. Nothing attends."""
        hidden = fields.integer("hidden_size")
        return {
            "vocab_size": fields.integer("vocab_size"),
            "hidden_size": hidden,
            "intermediate_size": int(fields.number("expand") * hidden),
            "num_hidden_layers": fields.integer("num_hidden_layers"),
            "num_attention_heads": 1,
            "rms_norm_eps": fields.number("layer_norm_epsilon"),
            "rope_theta": None,
            "layer_layout": "single",
            "tie_word_embeddings": fields.flag("tie_word_embeddings"),
        }
