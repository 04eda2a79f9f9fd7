"""`mobius explain MODEL`: what optimisation would do for a target, and what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mobius.cli.console import DebugOption, JsonOption, reported_errors
from mobius.cli.quantize_options import QuantizeOption
from mobius.cli.report_view import (
    DtypeOption,
    EpOption,
    OpsetOption,
    PaddingOption,
    ReportOption,
    RoleOption,
    report_view,
)

if TYPE_CHECKING:
    from mobius.explain import Explanation

__all__ = ["explain"]


def explain(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="An .onnx file, a package's folder, or a model as `mobius build` takes it.",
        ),
    ],
    ep: EpOption = "default",
    dtype: DtypeOption = None,
    role: RoleOption = "decoder",
    opset: OpsetOption = None,
    padding_side: PaddingOption = "right",
    quantize: QuantizeOption = None,
    every_node: Annotated[
        bool, typer.Option("--all", help="Name every node that is left alone.")
    ] = False,
    as_json: JsonOption = False,
    report: ReportOption = None,
    revision: Annotated[
        str | None, typer.Option("--revision", help="Branch, tag or commit on the hub.")
    ] = None,
    token: Annotated[
        str | None, typer.Option("--token", help="Hub access token. [default: the one stored]")
    ] = None,
    cache_dir: Annotated[
        Path | None, typer.Option("--cache-dir", help="Folder for downloaded files.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Never touch the network.")] = False,
    debug: DebugOption = False,
) -> None:
    """Show what optimisation would do to MODEL, and what it would leave alone and why.

    Works without the weights and writes nothing.

    Exit codes: 0 done, 1 an error, 2 wrong usage.
    """
    with reported_errors(debug=debug, json_lines="explain" if as_json else None):
        from mobius.explain import explain as explain_model
        from mobius.html_report import check_report_path, write_html_report

        if report is not None:
            check_report_path(report)
        explanation = explain_model(
            model,
            ep=ep,
            dtype=dtype,
            role=role,
            opset=opset,
            padding_side=padding_side,
            quantize=quantize,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            offline=offline,
        )
        if report is not None:
            title = f"{model} for {explanation.ep}"
            write_html_report(report, explanation.reports, title=title)
        if as_json:
            typer.echo(json.dumps(explanation.to_dict(), indent=2))
        else:
            _show(explanation, every_node=every_node)


def _show(explanation: Explanation, *, every_node: bool) -> None:
    from rich.console import Console

    console = Console()
    for key, report in explanation.reports.items():
        if every_node:
            console.print(report_view(key, report, most_nodes=len(report.refusals)))
        else:
            console.print(report_view(key, report))
