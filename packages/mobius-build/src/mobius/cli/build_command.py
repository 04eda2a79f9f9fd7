"""`mobius build MODEL OUT`: a checkpoint in, a saved package out."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from mobius.cli.console import DebugOption, reported_errors, save_progress, stderr_console

if TYPE_CHECKING:
    from mobius.package import ModelPackage

__all__ = ["build"]

TRACE_LOGGER = "mobius._optimizations"


def build(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Hub id, or a folder in HuggingFace layout.")
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="New or empty folder for the package.")
    ],
    ep: Annotated[
        str, typer.Option("--ep", help="Execution provider; `mobius eps` lists them.")
    ] = "default",
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="f32, f16 or bf16. [default: the checkpoint's own]"),
    ] = None,
    opset: Annotated[
        int | None,
        typer.Option("--opset", help="Newest opset, 17 to 24. [default: what the EP runs]"),
    ] = None,
    no_weights: Annotated[
        bool, typer.Option("--no-weights", help="Write the graphs only.")
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Show what each optimisation did.")
    ] = False,
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
    """Build MODEL for an execution provider and save it in OUT."""
    with reported_errors(debug=debug), _traced(trace):
        import mobius
        from mobius.saving import check_target

        target = check_target(out, overwrite=overwrite, source=model)
        with _status(f"Building {model} for {ep}", trace=trace):
            package = mobius.build(
                model,
                execution_provider=ep,
                dtype=dtype,
                opset=opset,
                load_weights=not no_weights,
                trace_optimization=trace,
                revision=revision,
                token=token,
                cache_dir=cache_dir,
                offline=offline,
            )
        package.allow_non_finite = allow_non_finite
        with save_progress() as progress:
            package.save(target, overwrite=overwrite, progress=progress)
        typer.echo(_summary(package, model, out, target))


def _status(text: str, *, trace: bool) -> contextlib.AbstractContextManager[object]:
    """Return a spinner on a terminal; nothing where it would run into the lines of a trace."""
    console = stderr_console()
    if trace or not console.is_terminal:
        return contextlib.nullcontext()
    return console.status(escape(text))


def _summary(package: ModelPackage, model: str, out: Path, target: Path) -> str:
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    dtype = "" if package.dtype is None else f" {package.dtype.name}"
    weights = "" if package.is_loaded else ", without weights"
    return f"Saved {model} for {package.ep}{dtype} in {out} ({size / 1e6:,.1f} MB{weights})"


@contextlib.contextmanager
def _traced(trace: bool) -> Iterator[None]:
    """Show the trace on stderr while the block runs, whatever logging is set up to do."""
    if not trace:
        yield
        return
    logger = logging.getLogger(TRACE_LOGGER)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
