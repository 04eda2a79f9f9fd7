"""An `Attention` node in -> its cache and its heads, or the reason why they are not proved."""

from __future__ import annotations

import dataclasses
from typing import NoReturn

import onnx_ir as ir

from mobius_ir_rules.functions.sink_attention import SINK_ATTENTION
from mobius_ir_rules.rule import refuse
from mobius_ir_rules.values import (
    MICROSOFT,
    describe_node,
    describe_value,
    input_at,
    int_attribute,
    is_used,
    output_at,
    static_dim,
)

ATTENTIONS = (("", "Attention"), SINK_ATTENTION, (MICROSOFT, "GroupQueryAttention"))
"""Operators that attend and give back a cache."""


@dataclasses.dataclass(frozen=True)
class Heads:
    """Number of query heads, of key and value heads, and the size of each."""

    query: int
    key_value: int
    size: int


def cache_of(node: ir.Node) -> tuple[ir.Value, ir.Value]:
    """Return past_key and past_value; prove that both presents are given back.

    Raises:
        RefusedError: Where that is not proved.
    """
    past_key, past_value = input_at(node, 4), input_at(node, 5)
    if past_key is None or past_value is None:
        refuse(f"{describe_node(node)} has no past_key and past_value pair; both are needed.", node)
    for role, index in (("present_key", 1), ("present_value", 2)):
        present = output_at(node, index)
        if present is None or not is_used(present):
            refuse(
                f"The output {role} of {describe_node(node)} is absent or unused; both present "
                "outputs are needed, because the past is given.",
                node,
            )
    return past_key, past_value


def require_unseen_cache(node: ir.Node) -> None:
    """Prove that nobody but the node and the caller sees the cache.

    Raises:
        RefusedError: Where somebody does, or where there is no cache.
    """
    pasts = cache_of(node)
    for role, index in (("present_key", 1), ("present_value", 2)):
        for use in node.outputs[index].uses():
            refuse(
                f"The output {role} of {describe_node(node)} is read by {describe_node(use.node)}; "
                "it must only leave the graph, because GroupQueryAttention lays out the cache of "
                "padded rows differently.",
                node,
                # Models whose layers share keys are not to be had otherwise.
                inherent=(use.node.domain, use.node.op_type) in ATTENTIONS,
            )
    for role, past in zip(("past_key", "past_value"), pasts, strict=True):
        readers = [use.node for use in past.uses() if use.node is not node]
        if not past.is_graph_input() or readers:
            found = describe_value(past)
            if readers:
                found += f", read by {describe_node(readers[0])} too"
            refuse(
                f"The input {role} of {describe_node(node)} is {found}; a graph input that "
                "nothing else reads is needed, because GroupQueryAttention lays out the cache of "
                "padded rows differently.",
                node,
            )


def refuse_unequal_sizes(node: ir.Node, key: int | None, value: int | None) -> NoReturn:
    """Refuse heads of key and value that differ in size.

    Raises:
        RefusedError: Always.
    """
    refuse(
        f"The head sizes of key and value of {describe_node(node)} are {key} and {value}; equal "
        "ones are needed.",
        node,
        inherent=True,
    )


def heads_of(
    node: ir.Node, query: ir.Value, key: ir.Value, value: ir.Value, past_key: ir.Value
) -> Heads:
    """Return the number and size of the heads, proved from attributes and static widths.

    Raises:
        RefusedError: Where they are unknown, or none that `GroupQueryAttention` takes.
    """
    query_heads = int_attribute(node, "q_num_heads", 0)
    heads = int_attribute(node, "kv_num_heads", 0)
    if query_heads < 1 or heads < 1 or query_heads % heads:
        refuse(
            f"{describe_node(node)} has q_num_heads {query_heads} and kv_num_heads {heads}; "
            "the first must be a multiple of the second, and both positive.",
            node,
        )
    sizes: list[int | None] = []
    for tensor, count in ((query, query_heads), (key, heads), (value, heads)):
        width = static_dim(tensor, 2)
        sizes.append(width // count if width is not None and width % count == 0 else None)
    # Attention itself requires that query and key have one head size; value may have another.
    size = sizes[0] or sizes[1] or static_dim(past_key, 3)
    if size is None or sizes[2] is None:
        refuse(
            f"The head sizes of query, key and value of {describe_node(node)} are "
            f"{', '.join('unknown' if found is None else str(found) for found in sizes)}; widths "
            "that are known and multiples of the number of heads are needed.",
            node,
        )
    if sizes[2] != size:
        refuse_unequal_sizes(node, size, sizes[2])
    if size % 8:
        refuse(
            f"The head size of {describe_node(node)} is {size}; a multiple of 8 is needed.",
            node,
            inherent=True,
        )
    return Heads(query_heads, heads, size)
