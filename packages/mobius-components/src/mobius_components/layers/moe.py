"""Mixture of experts in a layer's feed-forward place: `[B, S, hidden]` -> `[B, S, hidden]`."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import ArchitectureConfig
from mobius_components.layers.linear import Linear
from mobius_components.layers.mlp import MLP, GatedMLP
from mobius_components.layers.router import Router, Routes
from mobius_components.layers.scaled import scaled
from mobius_components.layers.sparse_mlp import SparseMLP
from mobius_components.mixture_config import MixtureConfig
from mobius_components.parameter import Parameter
from mobius_ir_rules.functions.routed_experts import DOMAIN

# Activation of an expert -> `activation_type` of the operator, alone and with a gate.
_SILU, _GELU, _GELU_TANH = ("silu", "swiglu"), ("gelu_erf", "geglu_erf"), ("gelu", "geglu")
_ACTIVATION_TYPES = {
    "silu": _SILU,
    "swish": _SILU,
    "gelu": _GELU,
    "gelu_fast": _GELU_TANH,
    "gelu_new": _GELU_TANH,
    "gelu_pytorch_tanh": _GELU_TANH,
    "relu": ("relu",),
    "relu2": ("relu2",),
}
_INTERLEAVED, _IN_HALVES = 1, 2


class Experts(nn.Module):
    """Feed-forward layers of which a token goes through some, weights stacked by expert.

    Emits one `mobius.moe::RoutedExperts`. Source: `transformers` `MixtralExperts`,
    `GptOssExperts` (biases, clipped), `NemotronHExperts` (no gate), `Llama4TextExperts` (shares
    multiply the input).
    """

    def __init__(self, config: ArchitectureConfig, moe: MixtureConfig) -> None:
        super().__init__()
        width = moe.moe_latent_size or config.hidden_size
        experts, inner = moe.num_experts, moe.moe_intermediate_size
        gated = config.mlp_gated if moe.expert_gated is None else moe.expert_gated
        rows = 2 * inner if gated else inner
        # Named as transformers names them, so that a checkpoint's names are the graph's.
        self._first = "gate_up_proj" if gated else "up_proj"
        setattr(self, self._first, Parameter([experts, rows, width]))
        self.down_proj = Parameter([experts, width, inner])
        if moe.expert_bias:
            setattr(self, f"{self._first}_bias", Parameter([experts, rows]))
            self.down_proj_bias = Parameter([experts, width])
        self._attributes = _attributes(config, moe, gated)
        self._has_bias = moe.expert_bias

    def forward(self, op: OpBuilder, x: ir.Value, routes: Routes) -> Any:
        """Return the mixture of what each token's experts make of it."""
        weights = [getattr(self, self._first), self.down_proj]
        if self._has_bias:
            weights += [getattr(self, f"{self._first}_bias"), self.down_proj_bias]
        y = op.RoutedExperts(x, *routes, *weights, **self._attributes, _domain=DOMAIN, _version=1)
        # There is no schema to infer from; what follows needs to know the type.
        y.type, y.shape = x.type, x.shape
        return y


class SparseMoe(nn.Module):
    """Router, experts, and what every token goes through beside them.

    Source: `transformers` `MixtralSparseMoeBlock`, `Qwen2MoeSparseMoeBlock` (a gated shared
    expert), `DeepseekV3MoE` (a shared expert), `NemotronHMoE` (projections around the experts).
    """

    def __init__(self, config: ArchitectureConfig, moe: MixtureConfig) -> None:
        super().__init__()
        hidden, bias = config.hidden_size, config.mlp_bias
        self.gate = Router(hidden, moe)
        self.experts = Experts(config, moe)
        latent, shared = moe.moe_latent_size, moe.shared_expert_intermediate_size
        self.fc1_latent_proj = Linear(hidden, latent, bias=bias) if latent else None
        self.fc2_latent_proj = Linear(latent, hidden, bias=bias) if latent else None
        kind = GatedMLP if config.mlp_gated else MLP
        self.shared_experts = kind(config, shared) if shared else None
        self.shared_expert_gate = Linear(hidden, 1) if moe.shared_expert_gate else None
        self._shared_scale = moe.shared_expert_scale

    def forward(self, op: OpBuilder, x: ir.Value) -> Any:
        """Return the feed-forward output of `x`."""
        routes = self.gate(op, x)
        inner = x if self.fc1_latent_proj is None else self.fc1_latent_proj(op, x)
        routed = self.experts(op, inner, routes)
        if self.fc2_latent_proj is not None:
            routed = self.fc2_latent_proj(op, routed)
        if self.shared_experts is None:
            return routed
        shared = self.shared_experts(op, x)
        if self.shared_expert_gate is not None:
            shared = op.Mul(op.Sigmoid(self.shared_expert_gate(op, x)), shared)
        return op.Add(routed, scaled(op, shared, self._shared_scale))


def make_feed_forward(config: ArchitectureConfig, layer: int) -> nn.Module:
    """Return what a layer has in its feed-forward place."""
    if config.moe is not None and config.moe.is_sparse(layer):
        return SparseMoe(config, config.moe)
    size = config.feed_forward_size(layer)
    sparsity = config.activation_sparsity[layer] if config.activation_sparsity else 0.0
    if sparsity:
        return SparseMLP(config, size, sparsity)
    return GatedMLP(config, size) if config.mlp_gated else MLP(config, size)


def _attributes(config: ArchitectureConfig, moe: MixtureConfig, gated: bool) -> dict[str, Any]:
    """Return the attributes of the operator; those that say nothing are left out."""
    kind = _ACTIVATION_TYPES[moe.expert_act or config.hidden_act][gated]
    attributes: dict[str, Any] = {"k": moe.num_experts_per_tok, "activation_type": kind}
    if gated:
        attributes["swiglu_fusion"] = _INTERLEAVED if moe.interleaved else _IN_HALVES
    if kind == "swiglu":
        attributes |= {"activation_alpha": moe.swiglu_alpha, "activation_beta": moe.swiglu_beta}
        if moe.swiglu_limit is not None:
            attributes["swiglu_limit"] = moe.swiglu_limit
    if moe.scale_input:
        attributes["scale_input"] = 1
    return attributes
