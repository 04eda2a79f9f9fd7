"""`SharedBlockBeforeMamba2`: a transformer block that several layers share, then a state space."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.activations import ACTIVATIONS
from mobius_components.config import SHARED_BLOCK_BEFORE_MAMBA2, ArchitectureConfig
from mobius_components.layers.context import LayerContext
from mobius_components.layers.linear import Linear
from mobius_components.layers.mamba2 import Mamba2
from mobius_components.layers.norm import RMSNorm
from mobius_components.layers.state import KeyValue, LayerState, StateSpec, key_value_specs
from mobius_components.parameter import Parameter
from mobius_components.shared_block_config import SharedBlockConfig

Thin = tuple[ir.Value, ir.Value]
"""The matrices of a `LowRank`."""
_CACHES = 2
_PROJECTIONS = ("q_proj", "k_proj", "v_proj")


class SharedBlockBeforeMamba2(nn.Module):
    """`mamba(norm(x + linear(block(x))))`, `[B, S, hidden]` -> the same.

    `x` is the stream itself. The layer that is the first to use a block owns it.
    Source: `transformers` `Zamba2HybridLayer`.
    """

    def __init__(self, config: ArchitectureConfig, layer: int) -> None:
        super().__init__()
        shared, use = _settings(config), _use(config, layer)
        hidden, rank = config.hidden_size, shared.adapter_rank
        wide = 2 * hidden
        if use < shared.blocks:
            self.shared_transformer = SharedBlock(config)
        self._block: list[SharedBlock] = []
        names = _PROJECTIONS if shared.attention_adapter else ()
        widths = {name: (wide, wide) for name in names}
        widths["gate_up_proj"] = (hidden, 2 * config.intermediate_size)
        self._adapted = tuple(widths)
        for name, (width, out) in widths.items():
            setattr(self, f"{name}_adapter", LowRank(width, rank, out))
        self.linear = Linear(hidden, hidden)
        self.input_layernorm = RMSNorm(hidden, config.rms_norm_eps)
        self.mamba = Mamba2(config, layer)

    @staticmethod
    def states(config: ArchitectureConfig, layer: int) -> tuple[StateSpec, ...]:
        """Return the specs of keys and values, then those of the state space."""
        size = config.head_size
        return (*key_value_specs(config.kv_heads, size, size), *Mamba2.states(config, layer))

    def take(self, block: SharedBlock) -> None:
        """Use `block`, which belongs to the first layer that does."""
        self._block = [block]  # in a list, so that it is no child of this module

    def forward(
        self, op: OpBuilder, x: ir.Value, context: LayerContext, past: LayerState
    ) -> tuple[Any, LayerState]:
        """Return what is added to the stream, and the states after it."""
        (block,) = self._block
        cache, state = past[:_CACHES], past[_CACHES:]
        adapters = {name: getattr(self, f"{name}_adapter")(op) for name in self._adapted}
        attended, cache = block(op, x, context, cache, adapters)
        inner = self.input_layernorm(op, op.Add(x, self.linear(op, attended)))
        scanned, state = self.mamba(op, context.tokens.to_front(op, inner), context, state)
        return context.tokens.restore(op, scanned), (*cache, *state)


class LowRank(nn.Module):
    """Two thin matrices, `[rank, width]` and `[out, rank]`, for a block to multiply with."""

    def __init__(self, width: int, rank: int, out: int) -> None:
        super().__init__()
        self.down = Parameter([rank, width])
        self.up = Parameter([out, rank])

    def forward(self, op: OpBuilder) -> Thin:
        """Return the matrices, which are part of the model from here on."""
        del op
        return self.down, self.up


class SharedBlock(nn.Module):
    """Attention and feed-forward on stream and embedded tokens side by side, without residuals.

    Source: `transformers` `Zamba2AttentionDecoderLayer`, `Zamba2Attention`, `Zamba2MLP`.
    """

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        hidden, size, bias = config.hidden_size, config.head_size, _settings(config).bias
        wide, inner = 2 * hidden, config.intermediate_size
        self.input_layernorm = RMSNorm(wide, config.rms_norm_eps)
        self.q_proj = Linear(wide, config.num_attention_heads * size)
        self.k_proj = Linear(wide, config.kv_heads * size)
        self.v_proj = Linear(wide, config.kv_heads * size)
        self.o_proj = Linear(config.num_attention_heads * size, hidden)
        self.pre_ff_layernorm = RMSNorm(hidden, config.rms_norm_eps)
        self.gate_up_proj = Linear(hidden, 2 * inner, bias=bias)
        self.down_proj = Linear(inner, hidden, bias=bias)
        self._config = config

    def forward(
        self,
        op: OpBuilder,
        x: ir.Value,
        context: LayerContext,
        past: LayerState,
        adapters: Mapping[str, Thin],
    ) -> tuple[Any, LayerState]:
        """Return the block's output and the grown cache.

        Args:
            op: Builder.
            x: The stream, `[B, S, hidden]`.
            context: With a mask and the embedded tokens.
            past: Keys and values before these tokens.
            adapters: What this use adds to projections, by their names.
        """
        config, size = self._config, self._config.head_size
        assert context.embedded is not None  # a model with shared blocks gives it
        both = self.input_layernorm(op, op.Concat(x, context.embedded, axis=-1))
        query, key, value = (self._adapted(op, name, both, adapters) for name in _PROJECTIONS)
        if context.rotation is not None:
            query = context.rotation(op, query, config.num_attention_heads, size)
            key = context.rotation(op, key, config.kv_heads, size)
        attended, *cache = op.Attention(
            query,
            key,
            value,
            context.mask,
            *past,
            q_num_heads=config.num_attention_heads,
            kv_num_heads=config.kv_heads,
            scale=config.attention_scale,
            _outputs=3,
        )
        fed = self.pre_ff_layernorm(op, self.o_proj(op, attended))
        gate, up = op.Split(
            self._adapted(op, "gate_up_proj", fed, adapters), axis=-1, num_outputs=2, _outputs=2
        )
        activated = ACTIVATIONS[config.hidden_act](op, gate)
        return self.down_proj(op, op.Mul(activated, up)), KeyValue(*cache)

    def _adapted(self, op: OpBuilder, name: str, x: ir.Value, adapters: Mapping[str, Thin]) -> Any:
        """Return a projection of `x`, with what this use adds to it."""
        projected = getattr(self, name)(op, x)
        if name not in adapters:
            return projected
        added = x
        for matrix in adapters[name]:
            added = op.MatMul(added, op.Transpose(matrix, perm=[1, 0]))
        return op.Add(projected, added)


def share_blocks(mixers: Iterable[nn.Module], blocks: int) -> None:
    """Give each layer that uses a shared block the one whose turn it is.

    Args:
        mixers: The mixers of all layers in order.
        blocks: Number of blocks.
    """
    users = [mixer for mixer in mixers if isinstance(mixer, SharedBlockBeforeMamba2)]
    for use, mixer in enumerate(users):
        mixer.take(users[use % blocks].shared_transformer)


def _settings(config: ArchitectureConfig) -> SharedBlockConfig:
    assert config.shared_blocks is not None  # checked by the configuration
    return config.shared_blocks


def _use(config: ArchitectureConfig, layer: int) -> int:
    """Return how many layers before `layer` use a shared block."""
    assert config.layer_types is not None  # resolved by the configuration
    return config.layer_types[:layer].count(SHARED_BLOCK_BEFORE_MAMBA2)
