"""What every command shares: errors as one panel, exit codes, progress on a terminal."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Annotated, TextIO

import typer
from rich.console import Console

__all__ = ["EXIT_ERROR", "DebugOption", "reported_errors", "save_progress", "stderr_console"]

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130

DebugOption = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error instead of a panel.")
]


def stderr_console() -> Console:
    """Return a console for everything that is not a command's result."""
    return Console(stderr=True)


@contextlib.contextmanager
def reported_errors(*, debug: bool) -> Iterator[None]:
    """Turn exceptions of the block into one panel on stderr and an exit code.

    Args:
        debug: Let exceptions through, traceback and all.
    """
    with warnings.catch_warnings():
        # Ours are UserWarnings: the build goes on, but its user should know.
        warnings.filterwarnings("always", category=UserWarning)
        warnings.showwarning = _show_warning
        try:
            yield
        except KeyboardInterrupt:
            stderr_console().print("Interrupted. Nothing was left behind.", style="yellow")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except typer.Exit:
            raise
        except Exception as error:
            if debug:
                raise
            _show_error(error)
            raise typer.Exit(EXIT_ERROR) from None


@contextlib.contextmanager
def save_progress() -> Iterator[Callable[[int, int, str], None] | None]:
    """Yield a callback that draws bytes and rate, or `None` where stderr is not a terminal."""
    console = stderr_console()
    if not console.is_terminal:
        yield None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    with Progress(
        TextColumn("Saving"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task("save", total=None)

        def update(done: int, total: int, name: str) -> None:
            progress.update(task, completed=done, total=total, description=name)

        yield update


def _show_error(error: Exception) -> None:
    from rich.panel import Panel
    from rich.text import Text

    from mobius_eps import MobiusError

    expected = isinstance(error, (MobiusError, ValueError))
    text = str(error) or type(error).__name__
    if not expected:
        text = (
            f"{type(error).__name__}: {text}\n\nThis is not an error that Mobius expects. "
            "Run again with --debug and report what it prints."
        )
    title = "Error" if expected else "Unexpected error"
    # Text, not str: names in messages may hold square brackets, which are rich's markup
    stderr_console().print(Panel(Text(text), title=title, title_align="left", border_style="red"))


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    del filename, lineno, file, line
    print(f"{category.__name__}: {message}", file=sys.stderr)
