"""Decoder layers: mixer and feed-forward around a residual stream, by where the norms are.

Every layer maps `[B, S, hidden]` and a state to `[B, S, hidden]` and the state after it. What mixes
tokens is attention for most, see `mobius_components.layers.mixers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import ArchitectureConfig
from mobius_components.layers.context import LayerContext
from mobius_components.layers.mixers import mixer_of
from mobius_components.layers.mlp import make_mlp
from mobius_components.layers.norm import make_norm
from mobius_components.layers.state import LayerState

Attend = Callable[[ir.Value], Any]
"""Mixer of a layer: states to be attended, `[B, S, hidden]`, to what is added for them."""


class DecoderLayer(nn.Module):
    """Norms before mixer and feed-forward. Source: `transformers` `LlamaDecoderLayer`.

    A subclass names its norms, and says in `arrange` where they are.
    """

    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")

    def __init__(self, config: ArchitectureConfig, layer: int) -> None:
        super().__init__()
        mixer = mixer_of(config, layer)
        self._mixer = mixer.attribute
        setattr(self, mixer.attribute, mixer.make(config, layer))
        self.mlp = make_mlp(config)
        for name in self.norms:
            norm = make_norm(config.norm_type, config.hidden_size, config.rms_norm_eps)
            setattr(self, name, norm)
        self._multiplier = config.residual_multiplier

    def forward(
        self, op: OpBuilder, hidden_states: ir.Value, context: LayerContext, past: LayerState
    ) -> tuple[Any, LayerState]:
        """Return the residual stream after this layer, and the state after it."""
        after: list[LayerState] = []

        def attend(x: ir.Value) -> Any:
            attended, present = getattr(self, self._mixer)(op, x, context, past)
            after.append(present)
            return attended

        hidden_states = self.arrange(op, hidden_states, attend)
        (present,) = after
        return hidden_states, present

    def arrange(self, op: OpBuilder, x: ir.Value, attend: Attend) -> Any:
        """Return the stream `x` after attention and feed-forward, `attend` being called once."""
        x = self._add(op, x, attend(self._norm("input_layernorm", op, x)))
        return self._add(op, x, self.mlp(op, self._norm("post_attention_layernorm", op, x)))

    def _norm(self, name: str, op: OpBuilder, x: ir.Value) -> Any:
        return getattr(self, name)(op, x)

    def _add(self, op: OpBuilder, residual: ir.Value, update: ir.Value) -> Any:
        if self._multiplier is not None:
            update = op.Mul(update, self._multiplier)
        return op.Add(residual, update)


class PostNormLayer(DecoderLayer):
    """Norms of what is added to the stream. Source: `transformers` `Olmo2DecoderLayer`."""

    norms = ("post_attention_layernorm", "post_feedforward_layernorm")

    def arrange(self, op: OpBuilder, x: ir.Value, attend: Attend) -> Any:
        """Return the stream after attention and feed-forward."""
        x = self._add(op, x, self._norm("post_attention_layernorm", op, attend(x)))
        return self._add(op, x, self._norm("post_feedforward_layernorm", op, self.mlp(op, x)))


class NormAfterAddLayer(DecoderLayer):
    """Norms of the stream after each addition. Source: `transformers` `OPTDecoderLayer`."""

    def arrange(self, op: OpBuilder, x: ir.Value, attend: Attend) -> Any:
        """Return the stream after attention and feed-forward."""
        x = self._norm("input_layernorm", op, self._add(op, x, attend(x)))
        return self._norm("post_attention_layernorm", op, self._add(op, x, self.mlp(op, x)))


class SandwichLayer(DecoderLayer):
    """Norms before and after each part. Source: `transformers` `Gemma2DecoderLayer`."""

    norms = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )

    def arrange(self, op: OpBuilder, x: ir.Value, attend: Attend) -> Any:
        """Return the stream after attention and feed-forward."""
        attended = attend(self._norm("input_layernorm", op, x))
        x = self._add(op, x, self._norm("post_attention_layernorm", op, attended))
        fed = self.mlp(op, self._norm("pre_feedforward_layernorm", op, x))
        return self._add(op, x, self._norm("post_feedforward_layernorm", op, fed))


class ParallelLayer(DecoderLayer):
    """Attention and feed-forward of the same normed stream. Source: `transformers` `GPTJBlock`."""

    norms: tuple[str, ...] = ("input_layernorm",)

    def arrange(self, op: OpBuilder, x: ir.Value, attend: Attend) -> Any:
        """Return the stream after attention and feed-forward."""
        normed = self._norm(self.norms[0], op, x)
        attended = attend(normed)
        if len(self.norms) > 1:
            normed = self._norm(self.norms[1], op, x)
        fed = self.mlp(op, normed)
        return self._add(op, self._add(op, x, attended), fed)


class ParallelTwoNormsLayer(ParallelLayer):
    """As `ParallelLayer`, a norm for each part. Source: `transformers` `GPTNeoXLayer`."""

    norms = ("input_layernorm", "post_attention_layernorm")


LAYOUTS: Mapping[str, type[DecoderLayer]] = MappingProxyType(
    {
        "pre_norm": DecoderLayer,
        "post_norm": PostNormLayer,
        "norm_after_add": NormAfterAddLayer,
        "sandwich": SandwichLayer,
        "parallel": ParallelLayer,
        "parallel_two_norms": ParallelTwoNormsLayer,
    }
)
"""The layer of each `ArchitectureConfig.layer_layout`."""
