"""`layer_svg(graph, marked)`: a layer as inline SVG, data flowing downward."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from html import escape

from mobius.layer_graph import LayerGraph
from mobius.layer_layout import Layout, lay_out

__all__ = ["MOST_NODES", "layer_svg"]

MOST_NODES = 150
"""A layer with more nodes is no help to look at."""

_ROW = 46.0
_BOX = 24.0
_GAP = 12.0
_MARGIN = 8.0
_CHARACTER = 6.9
_LONGEST = 30


@dataclasses.dataclass(frozen=True)
class _Box:
    label: str
    title: str
    style: str

    @property
    def width(self) -> float:
        return round(len(self.label) * _CHARACTER + 18, 1)


def layer_svg(graph: LayerGraph, marked: Collection[str], *, name: str) -> str:
    """Return an `<svg>` element with a box for each node of `graph`.

    Values from outside and values that outside reads are pills. Styles are the classes `op`,
    `marked`, `value` and `edge`.

    Args:
        graph: The layer.
        marked: Operators to be set off.
        name: What the picture shows, for those who cannot see it.
    """
    boxes, edges = _boxes(graph, marked)
    layout = lay_out([box.width for box in boxes], edges, _GAP)
    width = layout.width + 2 * _MARGIN
    height = layout.depth * _ROW - (_ROW - _BOX) + 2 * _MARGIN
    lines = [
        f'<svg role="img" aria-label="{escape(name)}" viewBox="0 0 {width:.1f} {height:.1f}" '
        f'width="{width:.0f}" height="{height:.0f}">'
    ]
    lines += [f'<path class="edge" d="{_path(route)}"/>' for route in layout.routes]
    lines += [_draw(box, layout, index) for index, box in enumerate(boxes)]
    return "\n".join([*lines, "</svg>"])


def _boxes(graph: LayerGraph, marked: Collection[str]) -> tuple[list[_Box], list[tuple[int, int]]]:
    boxes = [
        _Box(
            node.op_type.rpartition("::")[2],
            f"{node.op_type}\n{node.name}",
            "marked" if node.op_type in marked else "op",
        )
        for node in graph.nodes
    ]
    edges = [(start, end) for end, node in enumerate(graph.nodes) for start in node.inputs]
    sources: dict[str, int] = {}
    for reader, node in enumerate(graph.nodes):
        for name in node.reads:
            if name not in sources:
                sources[name] = len(boxes)
                boxes.append(_Box(_short(name), name, "value"))
            edges.append((sources[name], reader))
    for writer, node in enumerate(graph.nodes):
        for name in node.writes:
            edges.append((writer, len(boxes)))
            boxes.append(_Box(_short(name), name, "value"))
    return boxes, edges


def _short(name: str) -> str:
    if len(name) <= _LONGEST:
        return name
    return f"…{name[1 - _LONGEST :]}"


def _path(route: tuple[tuple[float, int], ...]) -> str:
    (x, rank), *rest = route
    top = _MARGIN + rank * _ROW + _BOX
    parts = [f"M{x + _MARGIN:.1f} {top:.1f}"]
    for index, (next_x, next_rank) in enumerate(rest):
        end = _MARGIN + next_rank * _ROW
        middle = (top + end) / 2
        parts.append(
            f"C{x + _MARGIN:.1f} {middle:.1f} {next_x + _MARGIN:.1f} {middle:.1f} "
            f"{next_x + _MARGIN:.1f} {end:.1f}"
        )
        x, top = next_x, end + _BOX
        if index < len(rest) - 1:
            parts.append(f"V{top:.1f}")
    return "".join(parts)


def _draw(box: _Box, layout: Layout, index: int) -> str:
    center = layout.centers[index] + _MARGIN
    top = _MARGIN + layout.ranks[index] * _ROW
    radius = _BOX / 2 if box.style == "value" else 4
    return (
        f'<g class="{box.style}"><title>{escape(box.title)}</title>'
        f'<rect x="{center - box.width / 2:.1f}" y="{top:.1f}" width="{box.width:.1f}" '
        f'height="{_BOX:.0f}" rx="{radius:.0f}"/>'
        f'<text x="{center:.1f}" y="{top + _BOX / 2:.1f}">{escape(box.label)}</text></g>'
    )
