"""`mobius optimize IN OUT`: an `.onnx` file in, one for an execution provider out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mobius.cli.console import DebugOption, JsonOption, reported_errors, stderr_console
from mobius.cli.report_view import (
    DtypeOption,
    EpOption,
    OpsetOption,
    ReportOption,
    RoleOption,
    TraceOption,
    report_view,
)

if TYPE_CHECKING:
    from mobius.optimize_file import OptimizedFile

__all__ = ["optimize"]


def optimize(
    source: Annotated[Path, typer.Argument(metavar="IN", help="An .onnx file; it is not changed.")],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="The .onnx file to write; its data go beside it.")
    ],
    ep: EpOption = "default",
    dtype: DtypeOption = None,
    role: RoleOption = "decoder",
    opset: OpsetOption = None,
    copy_weights: Annotated[
        bool,
        typer.Option(
            "--copy-weights",
            help="Copy all data, so that OUT does not need the data file of IN in the same folder.",
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
    trace: TraceOption = False,
    report: ReportOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Optimise an ONNX file for an execution provider.

    Data that nothing changes stay where they are: in the folder of IN, OUT refers to the same data
    file. In another folder they are copied.

    Exit codes: 0 done, 1 an error, 2 wrong usage.
    """
    with reported_errors(debug=debug, json_lines="optimize" if as_json else None) as reporter:
        from mobius.html_report import check_report_path, write_html_report
        from mobius.optimize_file import optimize_file

        if report is not None:
            check_report_path(report)
        working = reporter.working(f"Optimising {source} for {ep}")
        with working, reporter.saving() as progress:
            result = optimize_file(
                source,
                target,
                ep=ep,
                dtype=dtype,
                role=role,
                opset=opset,
                overwrite=overwrite,
                copy_weights=copy_weights,
                progress=progress,
            )
        if trace:
            stderr_console().print(report_view("model", result.report))
        if report is not None:
            title = f"{source.name} for {result.report.ep}"
            write_html_report(report, {"model": result.report}, title=title)
        typer.echo(json.dumps(_as_json(source, result)) if as_json else _summary(source, result))


def _as_json(source: Path, result: OptimizedFile) -> dict[str, Any]:
    report = result.report
    return {
        "source": str(source),
        "saved": str(result.path),
        "data": None if result.data is None else str(result.data),
        "shared": list(result.shared),
        "ep": report.ep,
        "dtype": report.dtype.name,
        "nodes_before": report.nodes_before,
        "nodes_after": report.nodes_after,
    }


def _summary(source: Path, result: OptimizedFile) -> str:
    from mobius.dtypes import short_name

    report = result.report
    parts = [f"{result.path} ({result.path.stat().st_size / 1e6:,.1f} MB)"]
    if result.data is not None:
        parts.append(f"{result.data.name} ({result.data.stat().st_size / 1e6:,.1f} MB)")
    text = (
        f"Optimised {source} for {report.ep} in {short_name(report.dtype)} to "
        f"{' and '.join(parts)}: {report.nodes_before} → {report.nodes_after} nodes"
    )
    if result.shared:
        text += f". It reads {', '.join(result.shared)} too: keep them together"
    return text
