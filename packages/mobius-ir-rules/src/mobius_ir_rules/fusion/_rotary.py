"""Query and key in -> the `RotaryEmbedding` that rotates both alike, or `None`."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from mobius_ir_rules.values import input_at, int_attribute, producer_of, rank, static_dim


@dataclasses.dataclass(frozen=True)
class Rotary:
    """One rotation of query and key.

    Attributes:
        query: The query before rotation.
        key: The key before rotation.
        cos: Table of this layer, `[positions, width / 2]`.
        sin: Table of this layer, `[positions, width / 2]`.
        interleaved: Whether pairs are neighbours; otherwise they are half a width apart.
        nodes: The two `RotaryEmbedding` nodes.
    """

    query: ir.Value
    key: ir.Value
    cos: ir.Value
    sin: ir.Value
    interleaved: bool
    nodes: tuple[ir.Node, ir.Node]


def shared_rotary(
    query: ir.Value,
    key: ir.Value,
    position_ids: ir.Value,
    heads: tuple[int, int],
    head_size: int,
) -> Rotary | None:
    """Return the rotation that `GroupQueryAttention` can do instead of the two nodes.

    Proved: both are rotated, directly and last; by the same tables, indexed by `position_ids`
    (the positions that the operator computes by itself); in the same pairing and width; heads
    split the rows as the attention splits them; and the width is that of the tables and a
    multiple of 16, as the kernels want.

    Args:
        query: The query as the attention reads it.
        key: The key as the attention reads it.
        position_ids: The positions that the mask was made with.
        heads: Number of heads of query and key.
        head_size: Size of each head.
    """
    query_node = producer_of(query, "", "RotaryEmbedding")
    key_node = producer_of(key, "", "RotaryEmbedding")
    if query_node is None or key_node is None:
        return None
    rotated_query, cos, sin, positions = (input_at(query_node, index) for index in range(4))
    rotated_key = input_at(key_node, 0)
    if rotated_query is None or rotated_key is None or cos is None or sin is None:
        return None
    if positions is not position_ids:
        return None
    if any(input_at(key_node, index) is not input_at(query_node, index) for index in (1, 2, 3)):
        return None
    if rank(rotated_query) != 3 or rank(rotated_key) != 3 or rank(cos) != 2 or rank(sin) != 2:
        return None
    settings = []
    for node, count in zip((query_node, key_node), heads, strict=True):
        if int_attribute(node, "num_heads", 0) != count:
            return None
        width = int_attribute(node, "rotary_embedding_dim", 0) or head_size
        settings.append((int_attribute(node, "interleaved", 0), width))
    if settings[0] != settings[1]:
        return None
    interleaved, width = settings[0]
    # GroupQueryAttention reads the width from the tables alone.
    if width % 16 or width > head_size:
        return None
    if any(static_dim(table, 1) != width // 2 for table in (cos, sin)):
        return None
    return Rotary(
        rotated_query,
        rotated_key,
        cos,
        sin,
        interleaved=bool(interleaved),
        nodes=(query_node, key_node),
    )
