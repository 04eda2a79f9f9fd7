"""Where the boxes of a picture go: vertices and edges of an acyclic graph in, positions out.

The method is that of Sugiyama, Tagawa and Toda (1981): ranks by longest path, a vertex of no size
for each rank that a long edge crosses, orders by barycentre sweeps, then positions as close to
the neighbours' as the boxes' widths let them be. No step is random.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

__all__ = ["Layout", "lay_out"]

_SWEEPS = 8
_ORDER_SWEEPS = 6


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where everything goes.

    Attributes:
        centers: Centre of each vertex across its rank.
        ranks: Rank of each vertex, from 0 at the top.
        routes: For each edge the points that it passes through, `(center, rank)`, ends included.
        width: Width of all ranks; the leftmost box starts at 0.
        depth: Number of ranks.
    """

    centers: tuple[float, ...]
    ranks: tuple[int, ...]
    routes: tuple[tuple[tuple[float, int], ...], ...]
    width: float
    depth: int


def lay_out(widths: Sequence[float], edges: Sequence[tuple[int, int]], gap: float) -> Layout:
    """Place boxes so that every edge points downward.

    Args:
        widths: Width of each vertex.
        edges: `(from, to)` pairs without a cycle.
        gap: Space between neighbours of a rank.
    """
    count = len(widths)
    ranks = _ranks(count, edges)
    sizes = list(widths)
    chains: list[list[int]] = []
    for start, end in edges:
        chain = [start]
        for rank in range(ranks[start] + 1, ranks[end]):
            chain.append(len(sizes))
            sizes.append(0.0)
            ranks.append(rank)
        chains.append([*chain, end])
    above: list[list[int]] = [[] for _ in sizes]
    below: list[list[int]] = [[] for _ in sizes]
    for chain in chains:
        for upper, lower in itertools.pairwise(chain):
            above[lower].append(upper)
            below[upper].append(lower)
    rows = _ordered_rows(ranks, above, below)
    centers = _centers(rows, sizes, above, below, gap)
    # Vertices of no size may stick out too: edges pass through them.
    left = min((center - size / 2 for center, size in zip(centers, sizes, strict=True)), default=0)
    right = max((center + size / 2 for center, size in zip(centers, sizes, strict=True)), default=0)
    moved = [center - left for center in centers]
    return Layout(
        tuple(moved[:count]),
        tuple(ranks[:count]),
        tuple(tuple((moved[v], ranks[v]) for v in chain) for chain in chains),
        right - left,
        len(rows),
    )


def _ranks(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the length of the longest path to each vertex; sources go down to their readers."""
    outgoing: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for start, end in edges:
        outgoing[start].append(end)
        waiting[end] += 1
    has_input = [number > 0 for number in waiting]
    ranks = [0] * count
    ready = [vertex for vertex in range(count) if not waiting[vertex]]
    for vertex in ready:
        for end in outgoing[vertex]:
            ranks[end] = max(ranks[end], ranks[vertex] + 1)
            waiting[end] -= 1
            if not waiting[end]:
                ready.append(end)
    for vertex in range(count):
        if not has_input[vertex] and outgoing[vertex]:
            ranks[vertex] = min(ranks[end] for end in outgoing[vertex]) - 1
    return ranks


def _ordered_rows(
    ranks: Sequence[int], above: Sequence[Sequence[int]], below: Sequence[Sequence[int]]
) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
    for vertex, rank in enumerate(ranks):
        rows[rank].append(vertex)
    place = [0.0] * len(ranks)
    for row in rows:
        _number(row, place)
    for sweep in range(_ORDER_SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            row.sort(key=_mean_of(neighbours, place))
            _number(row, place)
    return rows


def _number(row: Sequence[int], place: list[float]) -> None:
    # As fractions of the row, since rows differ in length.
    for position, vertex in enumerate(row):
        place[vertex] = (position + 0.5) / len(row)


def _mean_of(neighbours: Sequence[Sequence[int]], place: Sequence[float]) -> Callable[[int], float]:
    def mean(vertex: int) -> float:
        near = neighbours[vertex]
        return sum(place[each] for each in near) / len(near) if near else place[vertex]

    return mean


def _centers(
    rows: Sequence[Sequence[int]],
    sizes: Sequence[float],
    above: Sequence[Sequence[int]],
    below: Sequence[Sequence[int]],
    gap: float,
) -> list[float]:
    centers = [0.0] * len(sizes)
    for row in rows:
        _place(row, [0.0] * len(row), sizes, gap, centers)
    for sweep in range(_SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        wanted = _mean_of(neighbours, centers)
        for row in rows if sweep % 2 == 0 else reversed(rows):
            _place(row, [wanted(vertex) for vertex in row], sizes, gap, centers)
    return centers


def _place(
    row: Sequence[int],
    wanted: Sequence[float],
    sizes: Sequence[float],
    gap: float,
    centers: list[float],
) -> None:
    """Put a row near where it wants to be, in order and without overlap.

    Packing from the left and from the right are two placements without overlap, and so is any
    mean of the two.
    """
    steps = [(sizes[left] + sizes[right]) / 2 + gap for left, right in itertools.pairwise(row)]
    from_left = list(wanted)
    for i, step in enumerate(steps):
        from_left[i + 1] = max(wanted[i + 1], from_left[i] + step)
    from_right = list(wanted)
    for i in range(len(steps) - 1, -1, -1):
        from_right[i] = min(wanted[i], from_right[i + 1] - steps[i])
    for vertex, a, b in zip(row, from_left, from_right, strict=True):
        centers[vertex] = (a + b) / 2
