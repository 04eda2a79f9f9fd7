"""Decoder layers: mixer and feed-forward around a residual stream, by where the norms are.

Every layer maps `[B, S, hidden]` and a state to `[B, S, hidden]` and the state after it. What mixes
tokens is attention for most, see `mobius_components.layers.mixers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import ArchitectureConfig
from mobius_components.layers.context import LayerContext
from mobius_components.layers.mixers import mixer_of
from mobius_components.layers.moe import make_feed_forward
from mobius_components.layers.norm import make_norm
from mobius_components.layers.scaled import scaled
from mobius_components.layers.state import LayerState
from mobius_components.multiplier_config import MultiplierConfig

Attend = Callable[[ir.Value], Any]
"""Mixer of a layer: states to be attended, `[B, S, hidden]`, to what is added for them."""


class DecoderLayer(nn.Module):
    """Norms before mixer and feed-forward. Source: `transformers` `LlamaDecoderLayer`.

    A subclass names its norms, the mixer's first, and says in `arrange` where they are.

    Attributes:
        norms: Names of the norms.
        mixer_name: Name of the mixer, `None` for the one that `MIXERS` has for its kind.
        feeds_forward: There is a feed-forward layer.
    """

    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    mixer_name: str | None = None
    feeds_forward = True

    def __init__(self, config: ArchitectureConfig, layer: int) -> None:
        super().__init__()
        mixer = mixer_of(config, layer)
        self._mixer = self.mixer_name or mixer.attribute
        self._norms_input = mixer.norms_input
        setattr(self, self._mixer, mixer.make(config, layer))
        if self.feeds_forward:
            self.mlp = make_feed_forward(config, layer)
        for name in self.norms if self._norms_input else self.norms[1:]:
            norm = make_norm(config.norm_type, config.hidden_size, config.rms_norm_eps)
            setattr(self, name, norm)
        self._multiplier = config.residual_multiplier

    def forward(
        self, op: OpBuilder, hidden_states: ir.Value, context: LayerContext, past: LayerState
    ) -> tuple[Any, LayerState]:
        """Return the residual stream after this layer, and the state after it."""
        after: list[LayerState] = []

        def attend(x: ir.Value) -> Any:
            attended, present = self.token_mixer(op, x, context, past)
            after.append(present)
            return attended

        hidden_states = self.arrange(op, hidden_states, attend)
        (present,) = after
        return hidden_states, present

    def arrange(self, op: OpBuilder, x: ir.Value, attend: Attend) -> Any:
        """Return the stream `x` after attention and feed-forward, `attend` being called once."""
        x = self._add(op, x, attend(self._norm("input_layernorm", op, x)))
        return self._add(op, x, self.mlp(op, self._norm("post_attention_layernorm", op, x)))

    @property
    def token_mixer(self) -> nn.Module:
        """What mixes tokens here."""
        found: nn.Module = getattr(self, self._mixer)
        return found

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


class SingleLayer(DecoderLayer):
    """One norm and one mixer, no feed-forward layer. Source: `transformers` `MambaBlock`."""

    norms: tuple[str, ...] = ("norm",)
    mixer_name = "mixer"
    feeds_forward = False

    def arrange(self, op: OpBuilder, x: ir.Value, attend: Attend) -> Any:
        """Return the stream after the mixer."""
        return self._add(op, x, attend(self._norm("norm", op, x) if self._norms_input else x))


class NormedStreamLayer(DecoderLayer):
    """The stream itself is normalised, and each part has factors for it and for what it adds.

    Source: `transformers` `MiniMaxDecoderLayer`.
    """

    def __init__(self, config: ArchitectureConfig, layer: int) -> None:
        super().__init__(config, layer)
        factors = config.multipliers or MultiplierConfig()
        self._factors = factors.stream[layer] if factors.stream else (1.0, 1.0)
        self._mlp_factors = factors.mlp_stream

    def arrange(self, op: OpBuilder, x: ir.Value, attend: Attend) -> Any:
        """Return the stream after mixer and feed-forward."""
        x = self._norm("input_layernorm", op, x)
        x = _weighed(op, x, attend(x), self._factors)
        x = self._norm("post_attention_layernorm", op, x)
        return _weighed(op, x, self.mlp(op, x), self._mlp_factors)


def _weighed(op: OpBuilder, x: ir.Value, update: ir.Value, factors: tuple[float, float]) -> Any:
    return op.Add(scaled(op, x, factors[0]), scaled(op, update, factors[1]))
