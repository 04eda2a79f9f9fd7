"""`MixtureConfig`: the numbers of a mixture of experts, and its router as data.

Field names are HuggingFace `config.json` keys wherever HuggingFace has one; families that spell one
differently translate it.
"""

from __future__ import annotations

import dataclasses

from mobius_components.config_checks import (
    check_counts,
    check_flags,
    check_positive,
    is_finite,
)
from mobius_components.config_error import ConfigError

SCORINGS = ("softmax", "softmax_of_chosen", "sigmoid", "sparsemixer")
GROUP_SCORES = ("max", "sum_of_two")
GATED_EXPERT_ACTS = ("silu", "swish", "gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh")
EXPERT_ACTS = (*GATED_EXPERT_ACTS, "relu", "relu2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RouterConfig:
    """How a router chooses experts for a token, and how much each of them counts.

    The steps, each of which a model may lack: logits, scores (`scoring`), a correction of the
    scores that the choice sees and nothing else (`e_score_correction_bias`), the best groups of
    experts (`n_group`), the best experts, their shares divided by the sum
    (`norm_topk_prob`), and a factor (`routed_scaling_factor`).

    Attributes:
        scoring: `"softmax"` of all logits, `"softmax_of_chosen"` (of the chosen logits alone),
            `"sigmoid"`, or `"sparsemixer"` (Phi 3.5 MoE, https://arxiv.org/abs/2409.12136).
        norm_topk_prob: Shares of a token are divided by their sum.
        norm_topk_min: The least sum that they are divided by; 0 for no limit.
        norm_topk_epsilon: What is added to their sum.
        e_score_correction_bias: There is a bias for the choice, float32.
        n_group: Groups of experts that lie side by side; 1 for none.
        topk_group: Groups that experts of a token are chosen from.
        group_score: What a group is worth: its best score (`"max"`, DeepSeek-V2) or that of its
            two best together (`"sum_of_two"`, DeepSeek-V3).
        routed_scaling_factor: Factor of the shares.
        bias: The logits have a bias (GPT-OSS).
        float32: The logits are computed in float32, and the router's weights are kept in it. Else
            they are computed in the dtype of the build; scores are float32 in any case.
        router_jitter_noise: Where `"sparsemixer"` cuts: experts whose logit is less than the best
            one by more than twice this part are left out of the softmax.

    Raises:
        ConfigError: if a value is out of range or two fields contradict each other.
    """

    scoring: str = "softmax"
    norm_topk_prob: bool = False
    norm_topk_min: float = 0.0
    norm_topk_epsilon: float = 0.0
    e_score_correction_bias: bool = False
    n_group: int = 1
    topk_group: int = 1
    group_score: str = "max"
    routed_scaling_factor: float = 1.0
    bias: bool = False
    float32: bool = False
    router_jitter_noise: float = 0.0

    def __post_init__(self) -> None:
        check_flags(self, "norm_topk_prob", "e_score_correction_bias", "bias", "float32")
        check_counts(self, "n_group", "topk_group")
        if self.scoring not in SCORINGS:
            raise self._error("scoring", f"one of {', '.join(SCORINGS)}")
        if self.group_score not in GROUP_SCORES:
            raise self._error("group_score", f"one of {', '.join(GROUP_SCORES)}")
        if self.topk_group > self.n_group:
            raise self._error("topk_group", f"at most n_group, which is {self.n_group}")
        check_positive(self, "routed_scaling_factor")
        for field in ("norm_topk_min", "norm_topk_epsilon"):
            if not is_finite(getattr(self, field)) or getattr(self, field) < 0:
                raise self._error(field, "a number of at least zero")
        mixer = self.scoring == "sparsemixer"
        if not is_finite(self.router_jitter_noise) or (self.router_jitter_noise > 0) is not mixer:
            needed = "a number above zero" if mixer else "0.0 without scoring 'sparsemixer'"
            raise self._error("router_jitter_noise", needed)
        if self.scoring not in ("softmax", "sigmoid"):
            for field in ("norm_topk_prob", "e_score_correction_bias", "limits_groups"):
                if getattr(self, field):
                    raise self._error(field, f"False with scoring {self.scoring!r}")
            if self.routed_scaling_factor != 1:
                raise self._error("routed_scaling_factor", f"1.0 with scoring {self.scoring!r}")

    @property
    def limits_groups(self) -> bool:
        """Whether the experts of a token are chosen from some of the groups only."""
        return self.topk_group < self.n_group

    def _error(self, field: str, needed: str) -> ConfigError:
        return ConfigError(field, getattr(self, field), needed, "RouterConfig")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtureConfig:
    """The mixture of experts in the feed-forward place of some or all layers.

    Attributes:
        num_experts: Experts of a layer.
        num_experts_per_tok: Experts that a token goes through.
        moe_intermediate_size: Width between the products of an expert.
        sparse_layers: Whether each layer has a mixture; the others have a feed-forward layer of
            `ArchitectureConfig.intermediate_size`. `None` means that all have one.
        router: How experts are chosen.
        expert_act: Activation of an expert, `None` for `ArchitectureConfig.hidden_act`.
        expert_gated: An expert is `down(act(gate(x)) * up(x))` rather than `down(act(up(x)))`;
            `None` for `ArchitectureConfig.mlp_gated`.
        expert_bias: The products of an expert have biases.
        interleaved: Rows of gate and up alternate in the stacked weight, rather than that all of
            gate come first.
        swiglu_alpha: Factor in the sigmoid of silu, where experts are gated with it.
        swiglu_beta: Added to `up(x)` there.
        swiglu_limit: What gate is clipped to from above, and up from both sides; `None` for no
            clipping. Source of the three: `transformers` `GptOssExperts`.
        scale_input: A share multiplies what goes into its expert, not what comes out (Llama 4).
        moe_latent_size: Width in which the experts work, between projections of their own
            (Nemotron 3); `None` for `ArchitectureConfig.hidden_size`.
        shared_expert_intermediate_size: Width of a feed-forward layer that every token goes
            through beside its experts; `None` for none.
        shared_expert_gate: What that one gives is multiplied by a sigmoid of its own (Qwen2-MoE).
        shared_expert_scale: Factor of what that one gives (Command A+, which takes the mean).

    Raises:
        ConfigError: if a value is out of range or two fields contradict each other.
    """

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    sparse_layers: tuple[bool, ...] | None = None
    router: RouterConfig = dataclasses.field(default_factory=RouterConfig)
    expert_act: str | None = None
    expert_gated: bool | None = None
    expert_bias: bool = False
    interleaved: bool = False
    swiglu_alpha: float = 1.0
    swiglu_beta: float = 0.0
    swiglu_limit: float | None = None
    scale_input: bool = False
    moe_latent_size: int | None = None
    shared_expert_intermediate_size: int | None = None
    shared_expert_gate: bool = False
    shared_expert_scale: float = 1.0

    def __post_init__(self) -> None:
        check_flags(self, "expert_bias", "interleaved", "scale_input", "shared_expert_gate")
        check_counts(self, "num_experts", "num_experts_per_tok", "moe_intermediate_size")
        optional = ("moe_latent_size", "shared_expert_intermediate_size")
        check_counts(self, *(field for field in optional if getattr(self, field) is not None))
        if not isinstance(self.router, RouterConfig):
            raise self._error("router", "a RouterConfig")
        if self.sparse_layers is not None:
            object.__setattr__(self, "sparse_layers", tuple(self.sparse_layers))
        if self.shared_expert_gate and self.shared_expert_intermediate_size is None:
            raise self._error("shared_expert_gate", "False without a shared expert")
        if self.shared_expert_scale != 1.0 and self.shared_expert_intermediate_size is None:
            raise self._error("shared_expert_scale", "1.0 without a shared expert")
        check_positive(self, "swiglu_alpha", "shared_expert_scale")
        if not is_finite(self.swiglu_beta):
            raise self._error("swiglu_beta", "a number")
        if self.swiglu_limit is not None:
            check_positive(self, "swiglu_limit")
        self._check_choice()

    def is_sparse(self, layer: int) -> bool:
        """Return whether the layer has a mixture."""
        return self.sparse_layers is None or self.sparse_layers[layer]

    def check_model(self, layers: int, hidden_act: str, gated: bool) -> None:
        """Check what depends on the model around the mixture.

        Args:
            layers: Number of decoder layers.
            hidden_act: Activation of the model's other feed-forward layers.
            gated: Whether they are gated.

        Raises:
            ConfigError: if `sparse_layers` has another length, or experts cannot be built.
        """
        if self.sparse_layers is not None and len(self.sparse_layers) != layers:
            raise self._error("sparse_layers", f"{layers} entries, one for each layer")
        act = self.expert_act or hidden_act
        gated = gated if self.expert_gated is None else self.expert_gated
        known = GATED_EXPERT_ACTS if gated else EXPERT_ACTS
        if act not in known:
            kind = "gated" if gated else "plain"
            needed = f"one of {', '.join(known)} for {kind} experts"
            if self.expert_act is None:
                raise ConfigError("hidden_act", act, needed)
            raise self._error("expert_act", needed)
        silu = gated and act in ("silu", "swish")
        if not silu and (self.swiglu_alpha, self.swiglu_beta, self.swiglu_limit) != (1, 0, None):
            raise self._error("swiglu_alpha", f"1.0 with {act!r}, which is no gated silu")

    def _check_choice(self) -> None:
        groups, each = self.router.n_group, self.num_experts // self.router.n_group
        reachable = self.router.topk_group * each
        if self.num_experts_per_tok > self.num_experts:
            needed = f"at most num_experts, which is {self.num_experts}"
            raise self._error("num_experts_per_tok", needed)
        if self.num_experts % groups:
            raise self._error("num_experts", f"a multiple of n_group, which is {groups}")
        if self.router.limits_groups:
            if self.num_experts_per_tok > reachable:
                needed = f"at most {reachable}, the experts of topk_group groups"
                raise self._error("num_experts_per_tok", needed)
            if self.router.group_score == "sum_of_two" and each < 2:
                raise self._error("num_experts", "at least two in a group, whose best two count")
        if self.router.scoring == "sparsemixer" and self.num_experts_per_tok != 2:
            raise self._error("num_experts_per_tok", "2 with scoring 'sparsemixer'")

    def _error(self, field: str, needed: str) -> ConfigError:
        return ConfigError(field, getattr(self, field), needed, "MixtureConfig")
