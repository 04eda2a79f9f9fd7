"""What every command shares: errors as one panel, exit codes, common options."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Annotated, TextIO

import typer
from rich.console import Console

from mobius.cli.reporter import Reporter, make_reporter

__all__ = [
    "EXIT_ERROR",
    "DebugOption",
    "JsonOption",
    "reported_errors",
    "stderr_console",
]

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130

DebugOption = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error instead of a panel.")
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Write the result as JSON on stdout, and stages, warnings and errors as one JSON "
        "object a line on stderr.",
    ),
]


def stderr_console() -> Console:
    """Return a console for everything that is not a command's result."""
    return Console(stderr=True)


@contextlib.contextmanager
def reported_errors(*, debug: bool, json_lines: str | None = None) -> Iterator[Reporter]:
    """Turn exceptions of the block into one panel on stderr and an exit code.

    Args:
        debug: Let exceptions through, traceback and all.
        json_lines: Name of the command, if whatever it tells is to be JSON lines.

    Yields:
        What shows progress.
    """
    reporter = make_reporter(command=json_lines)

    def show_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        del filename, lineno, file, line
        reporter.warned(category, str(message))

    with warnings.catch_warnings():
        # Ours are UserWarnings: the build goes on, but its user should know.
        warnings.filterwarnings("always", category=UserWarning)
        warnings.showwarning = show_warning
        try:
            with reporter.session():
                yield reporter
        except KeyboardInterrupt:
            reporter.interrupted()
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except (typer.Exit, BrokenPipeError):
            raise  # whoever read stdout has gone, as `head` does: typer ends quietly
        except Exception as error:
            if debug:
                raise
            reporter.failed(error, expected=_expected(error))
            raise typer.Exit(EXIT_ERROR) from None


def _expected(error: Exception) -> bool:
    from mobius_eps import MobiusError

    return isinstance(error, (MobiusError, ValueError))
