"""`Reporter`: what a command tells on stderr while it works: to people, to programs, or nothing.

`make_reporter` picks one: JSON lines where they are asked for, bars and a spinner on a terminal,
and silence (but for warnings and errors) where stderr is a file or a pipe.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    import onnx_ir as ir

    from mobius.report import StageRecord
    from mobius.saving import Progress
    from mobius.stage import Phase, Target

__all__ = ["JsonReporter", "Reporter", "TerminalReporter", "make_reporter"]


class Reporter:
    """Tells of warnings and errors, in words, and of nothing else."""

    def __init__(self, console: Console) -> None:
        """Create a reporter that writes to `console`."""
        self.console = console

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Surround all that a command does."""
        yield

    @contextlib.contextmanager
    def working(self, text: str) -> Iterator[None]:
        """Surround a part of the work; `text` says what it is."""
        del text
        yield

    @contextlib.contextmanager
    def downloading(self) -> Iterator[Progress | None]:
        """Yield what is called with bytes done, bytes in total and a file's name, or `None`."""
        yield None

    @contextlib.contextmanager
    def saving(self) -> Iterator[Progress | None]:
        """Yield what is called with bytes done, bytes in total and a tensor's name, or `None`."""
        yield None

    def warned(self, category: type[Warning], message: str) -> None:
        """Tell of a warning."""
        print(f"{category.__name__}: {message}", file=sys.stderr)

    def failed(self, error: Exception, *, expected: bool) -> None:
        """Tell of an error in one panel."""
        from rich.panel import Panel
        from rich.text import Text

        text = str(error) or type(error).__name__
        if not expected:
            text = (
                f"{type(error).__name__}: {text}\n\nThis is not an error that Mobius expects. "
                "Run again with --debug and report what it prints."
            )
        title = "Error" if expected else "Unexpected error"
        # Text, not str: names in messages may hold square brackets, which are rich's markup
        self.console.print(Panel(Text(text), title=title, title_align="left", border_style="red"))

    def interrupted(self) -> None:
        """Tell that the user stopped the command."""
        self.console.print("Interrupted. Nothing was left behind.", style="yellow")


class TerminalReporter(Reporter):
    """Shows a spinner and bars besides."""

    @contextlib.contextmanager
    def working(self, text: str) -> Iterator[None]:
        """Show a spinner with `text` and the stage of the optimisation that has run."""
        from rich.markup import escape

        from mobius.optimizer import observed

        with self.console.status(escape(text)) as status:

            def show(record: StageRecord) -> None:
                status.update(f"{escape(text)} [dim]{escape(record.name)}[/]")

            with observed(_Stages(on_stage=show)):
                yield

    @contextlib.contextmanager
    def downloading(self) -> Iterator[Progress | None]:
        """Show bytes and rate once there are some."""
        with self._bytes("Downloading", visible=False) as update:
            yield update

    @contextlib.contextmanager
    def saving(self) -> Iterator[Progress | None]:
        """Show bytes and rate."""
        with self._bytes("Saving", visible=True) as update:
            yield update

    @contextlib.contextmanager
    def _bytes(self, text: str, *, visible: bool) -> Iterator[Progress]:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        with Progress(
            TextColumn(text),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        ) as progress:
            task = progress.add_task(text, total=None, visible=visible)

            def update(done: int, total: int, name: str) -> None:
                progress.update(task, completed=done, total=total, description=name, visible=True)

            yield update


class JsonReporter(Reporter):
    """Writes one JSON object a line; its member `event` says what it is about."""

    def __init__(self, console: Console, command: str) -> None:
        """Create a reporter for a command."""
        super().__init__(console)
        self._command = command

    def emit(self, event: str, **fields: Any) -> None:
        """Write one line."""
        print(json.dumps({"event": event, **fields}), file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Turn log records into lines, and let libraries draw no bars."""
        os.environ["TQDM_DISABLE"] = "1"
        handler = _LogLines(self.emit)
        logging.getLogger().addHandler(handler)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)

    @contextlib.contextmanager
    def working(self, text: str) -> Iterator[None]:
        """Tell of start and end, of each optimised graph and each stage."""
        from mobius.__about__ import __version__
        from mobius.optimizer import observed

        start = time.perf_counter()
        self.emit("started", command=self._command, version=__version__, message=text)

        def started(target: Target) -> None:
            self.emit(
                "optimizing",
                ep=target.capabilities.name,
                dtype=target.dtype.name,
                role=str(target.role),
            )

        def finished(record: StageRecord) -> None:
            self.emit(
                "stage",
                phase=record.phase.value,
                name=record.name,
                applications=record.applications,
                nodes_before=record.nodes_before,
                nodes_after=record.nodes_after,
                refusals=len(record.refusals),
                seconds=round(record.seconds, 4),
            )

        with observed(_Stages(on_start=started, on_stage=finished)):
            yield
        self.emit("finished", seconds=round(time.perf_counter() - start, 3))

    @contextlib.contextmanager
    def downloading(self) -> Iterator[Progress | None]:
        """Tell of bytes, a hundred times at most."""
        yield self._percents("downloading", "file")

    @contextlib.contextmanager
    def saving(self) -> Iterator[Progress | None]:
        """Tell of bytes, a hundred times at most."""
        yield self._percents("saving", "tensor")

    def _percents(self, event: str, what: str) -> Progress:
        told = -1

        def update(done: int, total: int, name: str) -> None:
            nonlocal told
            percent = 100 * done // total if total else 100
            if percent > told:
                told = percent
                self.emit(event, bytes=done, total=total, **{what: name})

        return update

    def warned(self, category: type[Warning], message: str) -> None:
        """Write the warning as a line."""
        self.emit("warning", kind=category.__name__, message=message)

    def failed(self, error: Exception, *, expected: bool) -> None:
        """Write the error as a line."""
        kind = type(error).__name__
        self.emit("error", kind=kind, expected=expected, message=str(error) or kind)

    def interrupted(self) -> None:
        """Write that the user stopped the command."""
        self.emit("interrupted")


def make_reporter(*, command: str | None) -> Reporter:
    """Return the reporter for where stderr goes.

    Args:
        command: Name of a command that writes JSON lines; `None` for words.
    """
    console = Console(stderr=True)
    if command is not None:
        return JsonReporter(console, command)
    return TerminalReporter(console) if console.is_terminal else Reporter(console)


class _LogLines(logging.Handler):
    """Turns log records of warnings and worse into lines."""

    def __init__(self, emit: Callable[..., None]) -> None:
        super().__init__(logging.WARNING)
        self._emit = emit

    def emit(self, record: logging.LogRecord) -> None:
        self._emit("log", level=record.levelname, logger=record.name, message=record.getMessage())


def _nothing(_: object) -> None:
    pass


class _Stages:
    """An observer of the pipeline that passes on what a reporter tells."""

    def __init__(
        self,
        *,
        on_start: Callable[[Target], None] = _nothing,
        on_stage: Callable[[StageRecord], None] = _nothing,
    ) -> None:
        self._on_start = on_start
        self._on_stage = on_stage

    def started(self, target: Target) -> None:
        self._on_start(target)

    def phase_started(
        self, phase: Phase, target: Target, passes: Sequence[ir.passes.PassBase]
    ) -> None:
        del phase, target, passes

    def stage_finished(self, record: StageRecord) -> None:
        self._on_stage(record)

    def finished(self, records: Sequence[StageRecord]) -> None:
        del records
