"""`op_histogram`: nodes of a model, counted by operator; `changes`: what differs between two."""

from __future__ import annotations

import collections

import onnx_ir as ir

from mobius.report import OpDelta
from mobius_ir_rules.passes.graphs import all_nodes

Histogram = collections.Counter[str]


def op_histogram(model: ir.Model) -> Histogram:
    """Count the nodes of the main graph and its subgraphs by operator; function bodies not.

    Operators of other domains are qualified: `com.microsoft::GroupQueryAttention`.
    """
    counts = collections.Counter((node.domain, node.op_type) for node in all_nodes(model.graph))
    return collections.Counter(
        {
            f"{domain}::{op_type}" if domain else op_type: count
            for (domain, op_type), count in counts.items()
        }
    )


def changes(before: Histogram, after: Histogram) -> tuple[OpDelta, ...]:
    """Return the net changes: additions, then removals, each with the largest first."""
    net = {op: after[op] - before[op] for op in before.keys() | after.keys()}
    deltas = [OpDelta(op, count) for op, count in net.items() if count]
    return tuple(sorted(deltas, key=lambda d: (d.count < 0, -abs(d.count), d.op_type)))
