"""Bytes and rates on a terminal, lines of JSON where asked, nothing elsewhere."""

from __future__ import annotations

import io
import json
import time

import pytest
from rich.console import Console

from mobius.cli.reporter import JsonReporter, Reporter, TerminalReporter, make_reporter


def console(text: io.StringIO) -> Console:
    return Console(file=text, force_terminal=True, width=120)


@pytest.mark.parametrize(("what", "word"), [("saving", "Saving"), ("downloading", "Downloading")])
def test_a_terminal_shows_bytes_and_rate(what: str, word: str) -> None:
    text = io.StringIO()
    with getattr(TerminalReporter(console(text)), what)() as update:
        update(1_500_000, 6_000_000, "model.safetensors")
        update(3_000_000, 6_000_000, "model.safetensors")
    shown = text.getvalue()
    assert word in shown
    assert "3.0/6.0 MB" in shown
    assert "/s" in shown or "?" in shown


def test_no_bar_where_nothing_is_downloaded() -> None:
    text = io.StringIO()
    with TerminalReporter(console(text)).downloading():
        pass
    assert "Downloading" not in text.getvalue()


def test_bars_below_a_spinner() -> None:
    """As `mobius build` has them: a download while the model is being built."""
    text = io.StringIO()
    reporter = TerminalReporter(console(text))
    with reporter.working("Building"), reporter.downloading() as update:
        assert update is not None
        update(1_000_000, 2_000_000, "model.safetensors")
        time.sleep(0.3)  # the spinner draws both, ten times a second
    assert "1.0/2.0 MB" in text.getvalue()


def test_elsewhere_it_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = make_reporter(command=None)
    assert type(reporter) is Reporter  # stderr of a test is no terminal
    with reporter.saving() as saved, reporter.downloading() as downloaded:
        assert saved is None
        assert downloaded is None
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("what", "field"), [("saving", "tensor"), ("downloading", "file")])
def test_json_tells_each_percent_once(
    capsys: pytest.CaptureFixture[str], what: str, field: str
) -> None:
    with getattr(JsonReporter(Console(), "build"), what)() as update:
        for done in range(0, 1001):
            update(done, 1000, "name")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert len(lines) == 101
    assert lines[50] == {"event": what, "bytes": 500, "total": 1000, field: "name"}
