"""`changes`: two counts of a model's operators in, what differs between them out."""

from __future__ import annotations

import collections

from mobius.report import OpDelta

Histogram = collections.Counter[str]


def changes(before: Histogram, after: Histogram) -> tuple[OpDelta, ...]:
    """Return the net changes: additions, then removals, each with the largest first."""
    net = {op: after[op] - before[op] for op in before.keys() | after.keys()}
    deltas = [OpDelta(op, count) for op, count in net.items() if count]
    return tuple(sorted(deltas, key=lambda d: (d.count < 0, -abs(d.count), d.op_type)))
