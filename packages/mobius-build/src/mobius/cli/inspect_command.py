"""`mobius inspect PATH`: what a package or an `.onnx` file holds, without reading its weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mobius.cli.console import DebugOption, JsonOption, reported_errors

if TYPE_CHECKING:
    from rich.table import Table

    from mobius.inspection import GraphInspection, Inspection, Port
    from mobius.manifest import Manifest

__all__ = ["inspect"]

_NUMBER = re.compile(r"\d+")


def inspect(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A package's folder, or an .onnx file.")
    ],
    every_port: Annotated[
        bool, typer.Option("--all", help="Show every input and output in a line of its own.")
    ] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show inputs, outputs, operators and sizes of PATH, and how it was built.

    Reads no weights, and needs none.

    Exit codes: 0 done, 1 an error, 2 wrong usage.
    """
    with reported_errors(debug=debug, json_lines="inspect" if as_json else None):
        from mobius.inspection import inspect_path

        inspection = inspect_path(path)
        if as_json:
            typer.echo(json.dumps(inspection.to_dict(), indent=2))
        else:
            _show(inspection, every_port=every_port)


def _show(inspection: Inspection, *, every_port: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    if inspection.manifest is not None:
        console.print(Text(_built(inspection.manifest), style="bold"))
    for key, graph in inspection.graphs.items():
        console.print(Text(_headline(key, graph)))
        console.print(_ports(graph, every_port=every_port))
        console.print(Text(f"Operators: {_counts(graph.operators.items())}"))
        if graph.functions:
            console.print(Text(f"Function bodies: {', '.join(graph.functions)}"))
        for dtype, weights in graph.weights.items():
            console.print(
                Text(
                    f"Weights: {weights.tensors} {dtype}, {weights.elements:,} numbers, "
                    f"{_size(weights.bytes)}"
                )
            )
    sizes = (f"{name} {_size(size)}" for name, size in inspection.files.items())
    console.print(Text(f"Files: {', '.join(sizes)}"))


def _built(manifest: Manifest) -> str:
    import onnx_ir as ir

    from mobius.dtypes import short_name

    source = "" if manifest.source is None else f"{manifest.source.name} "
    revision = "" if manifest.source is None else manifest.source.revision or ""
    dtype = "" if manifest.dtype is None else f" in {short_name(ir.DataType[manifest.dtype])}"
    state = "" if manifest.weights else ", without weights"
    padding = "rows padded on either side" if manifest.padding == "any" else None
    padding = padding or f"rows padded on the {manifest.padding}"
    version = manifest.versions.get("mobius-build", "?")
    return (
        f"{source}{f'at {revision} ' if revision else ''}for {manifest.execution_provider}{dtype}"
        f"{_integers(manifest)}{state}; takes {padding}; built by Mobius {version}"
    )


def _integers(manifest: Manifest) -> str:
    quantization = manifest.quantization
    if not quantization:
        return ""
    if "bits" not in quantization:
        return ", integers as the checkpoint has them"
    zero = "" if quantization["symmetric"] else " with zero points"
    return f", int{quantization['bits']} in blocks of {quantization['block_size']}{zero}"


def _headline(key: str, graph: GraphInspection) -> str:
    opsets = ", ".join(f"{name or 'ai.onnx'} {n}" for name, n in graph.opset_imports.items())
    role = "" if graph.role is None else f" ({graph.role})"
    producer = "" if graph.producer is None else f", written by {graph.producer}"
    return f"\n{key}{role}: {sum(graph.operators.values())} nodes, opset {opsets}{producer}"


def _ports(graph: GraphInspection, *, every_port: bool) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("", "Name", "dtype", "Shape"):
        table.add_column(title)
    for kind, ports in (("in", graph.inputs), ("out", graph.outputs)):
        rows = ((port.name, port) for port in ports) if every_port else _alike(ports)
        for name, port in rows:
            shape = "?" if port.shape is None else ", ".join(map(_dimension, port.shape))
            table.add_row(kind, Text(name), port.dtype or "?", Text(f"[{shape}]"))
    return table


def _alike(ports: Iterable[Port]) -> Iterator[tuple[str, Port]]:
    """Yield one row for ports that differ in nothing but a number in their name."""
    groups: dict[object, list[Port]] = {}
    for port in ports:
        groups.setdefault((_NUMBER.sub("#", port.name), port.dtype, port.shape), []).append(port)
    for group in groups.values():
        first, last = _NUMBER.search(group[0].name), _NUMBER.search(group[-1].name)
        if len(group) == 1 or first is None or last is None:
            yield from ((port.name, port) for port in group)
        else:
            span = f"{{{first[0]}…{last[0]}}}"
            yield _NUMBER.sub(span, group[0].name, count=1), group[0]


def _dimension(dim: int | str | None) -> str:
    return "?" if dim is None else str(dim)


def _counts(items: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count} {name}" for name, count in items)


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else f"{count:,} bytes"
