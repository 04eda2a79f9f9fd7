"""Boxes do not overlap, every edge points down, and the same graph is laid out the same."""

from __future__ import annotations

import itertools
import random

import pytest

from mobius.layer_layout import lay_out

GAP = 5.0


def random_graph(seed: int) -> tuple[list[float], list[tuple[int, int]]]:
    generator = random.Random(seed)
    count = generator.randint(1, 40)
    edges = {
        (generator.randrange(end), end)
        for end in range(1, count)
        for _ in range(generator.randint(0, 3))
    }
    return [generator.uniform(20, 150) for _ in range(count)], sorted(edges)


@pytest.mark.parametrize("seed", range(20))
def test_no_overlap_and_every_edge_points_down(seed: int) -> None:
    widths, edges = random_graph(seed)
    layout = lay_out(widths, edges, GAP)
    assert all(layout.ranks[start] < layout.ranks[end] for start, end in edges)
    rows: dict[int, list[int]] = {}
    for vertex, rank in enumerate(layout.ranks):
        rows.setdefault(rank, []).append(vertex)
    for row in rows.values():
        row.sort(key=lambda vertex: layout.centers[vertex])
        for left, right in itertools.pairwise(row):
            apart = layout.centers[right] - layout.centers[left]
            assert apart >= (widths[left] + widths[right]) / 2 + GAP - 1e-6
    for vertex, width in enumerate(widths):
        assert layout.centers[vertex] - width / 2 >= -1e-6
        assert layout.centers[vertex] + width / 2 <= layout.width + 1e-6
    assert layout == lay_out(widths, edges, GAP)


@pytest.mark.parametrize("seed", range(20))
def test_an_edge_passes_every_rank_between_its_ends(seed: int) -> None:
    widths, edges = random_graph(seed)
    layout = lay_out(widths, edges, GAP)
    for (start, end), route in zip(edges, layout.routes, strict=True):
        assert route[0] == (layout.centers[start], layout.ranks[start])
        assert route[-1] == (layout.centers[end], layout.ranks[end])
        assert [rank for _, rank in route] == list(range(route[0][1], route[-1][1] + 1))


def test_a_source_is_right_above_its_reader() -> None:
    layout = lay_out([10.0] * 4, [(0, 1), (1, 2), (3, 2)], GAP)
    assert layout.ranks == (0, 1, 2, 1)


def test_a_graph_without_vertices() -> None:
    layout = lay_out([], [], GAP)
    assert (layout.width, layout.depth) == (0.0, 0)
