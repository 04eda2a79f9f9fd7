"""`mobius build MODEL OUT`: a checkpoint in, a saved package out."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from mobius.cli.console import DebugOption, reported_errors, save_progress, stderr_console
from mobius.cli.report_view import EpOption, OpsetOption, ReportOption, TraceOption, report_view

if TYPE_CHECKING:
    from mobius.package import ModelPackage

__all__ = ["build"]


def build(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Hub id, or a folder in HuggingFace layout.")
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="New or empty folder for the package.")
    ],
    ep: EpOption = "default",
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="f32, f16 or bf16. [default: the checkpoint's own]"),
    ] = None,
    opset: OpsetOption = None,
    no_weights: Annotated[
        bool, typer.Option("--no-weights", help="Write the graphs only.")
    ] = False,
    trace: TraceOption = False,
    report: ReportOption = None,
    revision: Annotated[
        str | None, typer.Option("--revision", help="Branch, tag or commit on the hub.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option("--token", help="Hub access token. [default: the one stored]"),
    ] = None,
    cache_dir: Annotated[
        Path | None, typer.Option("--cache-dir", help="Folder for downloaded files.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Never touch the network.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a package that is in OUT.")
    ] = False,
    allow_non_finite: Annotated[
        bool,
        typer.Option(
            "--allow-non-finite", help="Write weights that are NaN, infinite or overflow."
        ),
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Build MODEL for an execution provider and save it in OUT.

    Exit codes: 0 done, 1 an error, 2 wrong usage.
    """
    with reported_errors(debug=debug):
        import mobius
        from mobius.html_report import check_report_path, write_html_report
        from mobius.saving import check_target

        if report is not None:
            check_report_path(report)
        target = check_target(out, overwrite=overwrite, source=model)
        with _status(f"Building {model} for {ep}"):
            package = mobius.build(
                model,
                execution_provider=ep,
                dtype=dtype,
                opset=opset,
                load_weights=not no_weights,
                revision=revision,
                token=token,
                cache_dir=cache_dir,
                offline=offline,
            )
        if trace:
            for key, each in package.reports.items():
                stderr_console().print(report_view(key, each))
        package.allow_non_finite = allow_non_finite
        with save_progress() as progress:
            package.save(target, overwrite=overwrite, progress=progress)
        if report is not None:
            write_html_report(report, package.reports, title=f"{model} for {package.ep}")
        typer.echo(_summary(package, model, out, target))


def _status(text: str) -> contextlib.AbstractContextManager[object]:
    """Return a spinner on a terminal."""
    console = stderr_console()
    if not console.is_terminal:
        return contextlib.nullcontext()
    return console.status(escape(text))


def _summary(package: ModelPackage, model: str, out: Path, target: Path) -> str:
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    dtype = "" if package.dtype is None else f" {package.dtype.name}"
    weights = "" if package.is_loaded else ", without weights"
    return f"Saved {model} for {package.ep}{dtype} in {out} ({size / 1e6:,.1f} MB{weights})"
