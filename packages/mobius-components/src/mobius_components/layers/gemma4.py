"""The decoder layer of Gemma 4: norms around each part, experts beside, an input of its own.

Source: `transformers` `Gemma4TextDecoderLayer`.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import ArchitectureConfig
from mobius_components.layers.context import LayerContext
from mobius_components.layers.decoder import Attend, SandwichLayer
from mobius_components.layers.layer_input import LayerInput
from mobius_components.layers.linear import Linear
from mobius_components.layers.moe import Experts
from mobius_components.layers.norm import RMSNorm
from mobius_components.layers.router import Routes
from mobius_components.layers.state import LayerState
from mobius_components.mixture_config import MixtureConfig
from mobius_components.parameter import Parameter


class ScaledRouter(nn.Module):
    """Chooses the experts with the best logits; shares are their softmax times a factor of each.

    Source: `transformers` `Gemma4TextRouter`.
    """

    def __init__(self, config: ArchitectureConfig, moe: MixtureConfig) -> None:
        super().__init__()
        hidden, experts = config.hidden_size, moe.num_experts
        self.norm = RMSNorm(hidden, config.rms_norm_eps, weight=False)
        self.proj = Linear(hidden, experts)
        self.scale = Parameter([hidden])
        self.per_expert_scale = Parameter([experts])
        self._hidden, self._experts, self._chosen = hidden, experts, moe.num_experts_per_tok

    def forward(self, op: OpBuilder, x: ir.Value) -> Routes:
        """Return the routes of the tokens `x`, `[B, S, hidden]`."""
        scaled = op.Mul(op.Mul(self.norm(op, x), self.scale), self._hidden**-0.5)
        logits = op.Reshape(self.proj(op, scaled), [-1, self._experts])
        factors: ir.Value = self.per_expert_scale
        if logits.dtype != ir.DataType.FLOAT:
            logits = op.Cast(logits, to=ir.DataType.FLOAT)
            factors = op.Cast(factors, to=ir.DataType.FLOAT)
        best, chosen = op.TopK(logits, [self._chosen], axis=-1, _outputs=2)
        share = op.Mul(op.Softmax(best, axis=-1), op.Gather(factors, chosen, axis=0))
        return Routes(chosen, share)


class ExpertsBeside(nn.Module):
    """Experts beside the feed-forward layer, each with a norm of its own behind it."""

    def __init__(self, config: ArchitectureConfig, moe: MixtureConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.router = ScaledRouter(config, moe)
        self.experts = Experts(config, moe)
        self.post_feedforward_layernorm_1 = RMSNorm(size, eps)
        self.pre_feedforward_layernorm_2 = RMSNorm(size, eps)
        self.post_feedforward_layernorm_2 = RMSNorm(size, eps)

    def forward(self, op: OpBuilder, stream: ir.Value, fed: ir.Value) -> Any:
        """Return the sum of `fed`, what the feed-forward layer made of `stream`, and the experts'.

        Both are `[B, S, hidden]`, before the norms of the feed-forward layer's input and output.
        """
        routes = self.router(op, stream)
        routed = self.experts(op, self.pre_feedforward_layernorm_2(op, stream), routes)
        return op.Add(
            self.post_feedforward_layernorm_1(op, fed),
            self.post_feedforward_layernorm_2(op, routed),
        )


class Gemma4Layer(SandwichLayer):
    """Gemma 2's layer, with experts and a layer input where the model has them, and a factor."""

    def __init__(self, config: ArchitectureConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.beside = None if config.moe is None else ExpertsBeside(config, config.moe)
        self.layer_input = None if config.per_layer_input is None else LayerInput(config)
        self.layer_scalar = Parameter([1])

    def forward(
        self, op: OpBuilder, hidden_states: ir.Value, context: LayerContext, past: LayerState
    ) -> tuple[Any, LayerState]:
        """Return the residual stream after this layer, and the state after it."""
        x, present = super().forward(op, hidden_states, context, past)
        if self.layer_input is not None:
            assert context.layer_input is not None  # both follow from the configuration
            x = op.Add(x, self.layer_input(op, x, context.layer_input))
        return op.Mul(x, self.layer_scalar), present

    def arrange(self, op: OpBuilder, x: ir.Value, attend: Attend) -> Any:
        """Return the stream after attention and feed-forward."""
        attended = attend(self._norm("input_layernorm", op, x))
        x = self._add(op, x, self._norm("post_attention_layernorm", op, attended))
        fed = self.mlp(op, self._norm("pre_feedforward_layernorm", op, x))
        if self.beside is not None:
            fed = self.beside(op, x, fed)
        return self._add(op, x, self._norm("post_feedforward_layernorm", op, fed))
