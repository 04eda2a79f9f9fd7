"""What families with experts share: routers, which layers are sparse, and how tensors are named."""

from __future__ import annotations

from mobius_components import MixtureConfig, RouterConfig
from mobius_hf.config import ConfigFields

TRAINING_FIELDS = frozenset(
    {
        "expert_dropout",
        "input_jitter_noise",
        "output_router_logits",
        "router_aux_loss_coef",
        "router_jitter_noise",
    }
)
"""Fields that matter in training, or to what a call returns, and nowhere else."""

MIXTRAL_RENAMES = (
    (
        r"^(?:model\.)?(layers\.\d+)\.block_sparse_moe\.(experts\.\d+)\.w1\.",
        r"model.\1.mlp.\2.gate_proj.",
    ),
    (
        r"^(?:model\.)?(layers\.\d+)\.block_sparse_moe\.(experts\.\d+)\.w2\.",
        r"model.\1.mlp.\2.down_proj.",
    ),
    (
        r"^(?:model\.)?(layers\.\d+)\.block_sparse_moe\.(experts\.\d+)\.w3\.",
        r"model.\1.mlp.\2.up_proj.",
    ),
    (r"^(?:model\.)?(layers\.\d+)\.block_sparse_moe\.", r"model.\1.mlp."),
)
"""Names that Mixtral's checkpoints gave experts and router."""

SHARED_EXPERT_RENAME = (
    r"^(?:model\.)?(?:language_model\.)?(layers\.\d+\.mlp)\.shared_expert\.",
    r"model.\1.shared_experts.",
)
"""Name that Qwen's checkpoints give the expert of every token."""


def deepseek_router(fields: ConfigFields, *, groups: bool = True) -> RouterConfig:
    """Return the router that DeepSeek-V3 has, and those that took it over.

    Sigmoid scores, a bias for the choice, groups that count by their two best experts.
    Source: `transformers` `DeepseekV3TopkRouter`.

    Args:
        fields: The config.
        groups: Whether the family has groups.
    """
    return RouterConfig(
        scoring="sigmoid",
        e_score_correction_bias=True,
        norm_topk_prob=fields.flag("norm_topk_prob"),
        norm_topk_epsilon=1e-20,
        n_group=fields.integer("n_group") if groups else 1,
        topk_group=fields.integer("topk_group") if groups else 1,
        group_score="sum_of_two",
        routed_scaling_factor=fields.number("routed_scaling_factor"),
        float32=True,
    )


def deepseek_mixture(
    fields: ConfigFields,
    sparse_layers: tuple[bool, ...] | None = None,
    *,
    experts: tuple[str, ...] = ("n_routed_experts", "num_local_experts"),
    shared: str = "n_shared_experts",
) -> MixtureConfig:
    """Return the experts that DeepSeek-V3 has, and those that took them over.

    Every token goes through shared experts of the routed ones' width too.
    Source: `transformers` `DeepseekV3MoE`.

    Args:
        fields: The config.
        sparse_layers: Which layers have experts; `None` for all.
        experts: Names that the field with their number may have.
        shared: Field with the number of shared experts.
    """
    inner = fields.integer("moe_intermediate_size")
    return MixtureConfig(
        num_experts=fields.first_integer(*experts),
        num_experts_per_tok=fields.integer("num_experts_per_tok"),
        moe_intermediate_size=inner,
        sparse_layers=sparse_layers,
        router=deepseek_router(fields),
        shared_expert_intermediate_size=inner * fields.integer(shared),
    )


def dense_before(fields: ConfigFields, name: str = "first_k_dense_replace") -> tuple[bool, ...]:
    """Return which layers are sparse: all but those before the number `name`."""
    first = fields.integer(name)
    return tuple(layer >= first for layer in range(fields.integer("num_hidden_layers")))


def every_step(fields: ConfigFields) -> tuple[bool, ...]:
    """Return which layers are sparse: every `decoder_sparse_step`-th, but for `mlp_only_layers`.

    Source: `transformers` `Qwen2MoeDecoderLayer`.

    Raises:
        CheckpointConfigError: if one of the fields has no meaning.
    """
    step = fields.integer("decoder_sparse_step")
    dense = fields.layer_numbers("mlp_only_layers") or ()
    if step < 1:
        raise fields.unfit("decoder_sparse_step", step, "an integer of at least 1")
    layers = range(fields.integer("num_hidden_layers"))
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in layers)


def sparse_by_type(fields: ConfigFields, dense: str | None = None) -> tuple[bool, ...]:
    """Return which layers are sparse, as `mlp_layer_types` says.

    Args:
        fields: The config.
        dense: Field with the number of dense layers at the beginning, for files without the types.

    Raises:
        CheckpointConfigError: if a type is neither `"sparse"` nor `"dense"`.
    """
    layers = fields.integer("num_hidden_layers")
    first = fields.integer(dense) if dense is not None else 0
    if fields.value("mlp_layer_types") is None:
        return tuple(layer >= first for layer in range(layers))
    kinds = fields.words("mlp_layer_types", ("sparse", "dense"))
    return tuple(kind == "sparse" for kind in kinds)
