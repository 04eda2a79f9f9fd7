"""`report_view`: an optimisation report as a rich table, and the refusals below it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.text import Text

    from mobius.report import OptimizationReport

__all__ = [
    "DtypeOption",
    "EpOption",
    "OpsetOption",
    "PaddingOption",
    "ReportOption",
    "RoleOption",
    "TraceOption",
    "report_view",
]

MOST_NODES = 3

EpOption = Annotated[
    str, typer.Option("--ep", metavar="EP", help="Execution provider; `mobius eps` lists them.")
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        help="f32, f16 or bf16: what fusions are chosen for; nothing is cast. "
        "[default: the model's own]",
    ),
]
RoleOption = Annotated[
    str,
    typer.Option(
        "--role", metavar="ROLE", help="decoder, vision, encoder or embedding: what the file is."
    ),
]
OpsetOption = Annotated[
    int | None,
    typer.Option("--opset", help="Newest opset, 17 to 24. [default: what the EP runs]"),
]
PaddingOption = Annotated[
    str,
    typer.Option("--padding-side", help="Where the rows of a batch are padded: right or left."),
]
ReportOption = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="PAGE.html",
        help="Write what each optimisation did as an HTML page; one that is there is replaced.",
    ),
]
TraceOption = Annotated[
    bool, typer.Option("--trace", help="Show what each optimisation did, and left alone.")
]


def report_view(key: str, report: OptimizationReport, *, most_nodes: int = MOST_NODES) -> Group:
    """Return what stages did as a table, and why candidates, and stages, were left out.

    Args:
        key: Key of the graph.
        report: What was done to it.
        most_nodes: How many nodes to name for a reason; the number of all is always said.
    """
    from rich.console import Group
    from rich.text import Text

    from mobius.dtypes import short_name
    from mobius.report import refusal_groups

    title = (
        f"{key}: {report.role} for {report.ep} in {short_name(report.dtype)}, "
        f"{report.nodes_before} → {report.nodes_after} nodes"
    )
    parts: list[RenderableType] = [Text(title, style="bold"), _stages(report)]
    quiet = ", ".join(stage.name for stage in report.stages if stage.did_nothing)
    if quiet:
        parts.append(Text(f"Nothing to do: {quiet}", style="dim"))
    for group in refusal_groups(report.refusals):
        line = Text(f"{group.rule} left {len(group.nodes)} {group.op_type} alone: ", style="yellow")
        parts.append(line.append(group.reason, style="default"))
        more = len(group.nodes) - most_nodes
        shown = [*group.nodes[:most_nodes], *([f"and {more} more"] if more > 0 else [])]
        parts.extend(Text(f"  {node}", style="dim") for node in shown)
    if not report.refusals:
        parts.append(Text("The stages that ran left no candidate as it was."))
    parts.extend(_left_out(report))
    return Group(*parts)


def _left_out(report: OptimizationReport) -> list[Text]:
    """Return a line for each fusion that did not run, and one for all that was not needed."""
    from rich.text import Text

    from mobius.stage import Phase

    fusions = [each for each in report.left_out if each.phase is Phase.FUSION]
    others = [each.name for each in report.left_out if each.phase is not Phase.FUSION]
    lines = [Text(f"{each.name} did not run. {each.reason}", style="dim") for each in fusions]
    if others:
        lines.append(Text(f"Not needed: {', '.join(others)}", style="dim"))
    return lines


def _stages(report: OptimizationReport) -> RenderableType:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from mobius.trace import format_deltas

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("Phase")
    table.add_column("Stage", no_wrap=True)
    for title in ("Applied", "Nodes", "Left"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("Net change")
    for stage in report.stages:
        if stage.did_nothing:
            continue
        table.add_row(
            stage.phase.value,
            stage.name,
            "-" if stage.applications is None else str(stage.applications),
            str(stage.nodes_after),
            str(len(stage.refusals)),
            format_deltas(stage.deltas) if stage.deltas else "-",
        )
    return table
