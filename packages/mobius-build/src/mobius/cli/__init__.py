"""The command `mobius`: arguments in, exit code out.

Commands import what they need when they run, so that `mobius --help` is quick.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

import typer

from mobius.cli.build_command import build
from mobius.cli.eps_command import eps
from mobius.cli.explain_command import explain
from mobius.cli.inspect_command import inspect
from mobius.cli.models_command import models
from mobius.cli.optimize_command import optimize
from mobius.cli.run_command import run
from mobius.cli.verify_command import verify

__all__ = ["app", "main"]

EXIT_CODES = {
    0: "done (`verify`: the same)",
    1: "an error, which one panel on stderr explains (`verify`: or different)",
    2: "wrong usage",
    130: "interrupted",
    143: "terminated",
}

app = typer.Typer(
    name="mobius",
    help="Build ONNX models for the execution provider that will run them.",
    epilog="Exit codes: " + "; ".join(f"{code} {what}" for code, what in EXIT_CODES.items()) + ".",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # in "rich" mode, square brackets are markup and disappear
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(build)
app.command()(optimize)
app.command()(verify)
app.command()(explain)
app.command()(run)
app.command()(inspect)
app.command()(models)
app.command()(eps)


@app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(False, "--version", help="Show the version and exit."),
) -> None:
    if version:
        from mobius.__about__ import __version__

        typer.echo(f"mobius {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line and exit with its code."""
    # What it would say of a configuration on stderr, in its own form, is checked by the source.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    signal.signal(signal.SIGTERM, _terminate)
    app()


def _terminate(number: int, _frame: FrameType | None) -> None:
    # As an exception, so that a package that is being saved is cleaned up.
    sys.exit(128 + number)
