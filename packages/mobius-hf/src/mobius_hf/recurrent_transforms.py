"""What tensors of recurrent layers must become to be parameters: rows put in another order.

Families store a projection head by head, or group by group; graphs split it into parts that lie one
after the other, which costs nothing at run time.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from mobius_components import ArchitectureConfig
from mobius_hf.errors import CheckpointError
from mobius_hf.transforms import Named, Transform, leaf
from mobius_ir_rules.lazy import Concat, DerivedTensor, Expression, Reshape, Slice


@dataclasses.dataclass(frozen=True)
class Ungroup(Transform):
    """Parts that are stored group by group, `[groups, part + part + ..., ...]`.

    Attributes:
        into: Names of the parameters, with references to groups of the pattern.
        parts: Which parts each parameter has, by index, in order.
        sizes: Configuration -> number of groups, and the rows of each part within a group.
    """

    into: tuple[str, ...]
    parts: tuple[tuple[int, ...], ...]
    sizes: Callable[[ArchitectureConfig], tuple[int, Sequence[int]]]

    def apply(
        self, match: re.Match[str], tensor: ir.TensorProtocol, config: ArchitectureConfig
    ) -> Iterator[Named]:
        """Yield the parameters."""
        source = leaf(tensor)
        groups, sizes = self.sizes(config)
        if source.shape[0] != groups * sum(sizes):
            raise CheckpointError(
                f"The tensor {match.string!r} has shape {list(source.shape)}; the configuration "
                f"needs {groups * sum(sizes)} rows, {sum(sizes)} for each of {groups} groups. Does "
                "config.json belong to this checkpoint?"
            )
        rest = source.shape[1:]
        grouped = Reshape(source, (groups, sum(sizes), *rest))
        every = (slice(None),) * len(rest)
        for name, chosen in zip(self.into, self.parts, strict=True):
            rows: list[Expression] = []
            for part in chosen:
                start = sum(sizes[:part])
                cut = Slice(grouped, (slice(None), slice(start, start + sizes[part]), *every))
                rows.append(Reshape(cut, (groups * sizes[part], *rest)))
            joined = rows[0] if len(rows) == 1 else Concat(tuple(rows), 0)
            yield match.expand(name), DerivedTensor(joined, match.expand(name))


def query_and_gate(config: ArchitectureConfig) -> tuple[int, Sequence[int]]:
    """Return the groups of queries that are stored with gates. Source: `Qwen3NextAttention`."""
    return config.num_attention_heads, (config.head_size, config.head_size)


def lightning_heads(config: ArchitectureConfig) -> tuple[int, Sequence[int]]:
    """Return the groups of query, key and value. Source: `MiniMaxLightningAttention`."""
    return config.num_attention_heads, (config.head_size,) * 3


def delta_values_each(config: ArchitectureConfig) -> int:
    """Return how many values a key has in a gated delta rule."""
    assert config.gated_delta is not None  # only families with such layers ask
    return config.gated_delta.value_heads // config.gated_delta.key_heads


def delta_projection(config: ArchitectureConfig) -> tuple[int, Sequence[int]]:
    """Return the groups of query, key, values and z. Source: `Qwen3NextGatedDeltaNet`."""
    delta = config.gated_delta
    assert delta is not None
    values = delta_values_each(config) * delta.value_size
    return delta.key_heads, (delta.key_size, delta.key_size, values, values)


def delta_gates(config: ArchitectureConfig) -> tuple[int, Sequence[int]]:
    """Return the groups of b and a. Source: `Qwen3NextGatedDeltaNet`."""
    assert config.gated_delta is not None
    return config.gated_delta.key_heads, (delta_values_each(config),) * 2
