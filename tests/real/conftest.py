"""Shows what tests of published models measured; pytest records properties but hides them."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [each for each in terminalreporter.getreports("passed") if each.user_properties]
    if reports:
        terminalreporter.section("measured")
    for report in reports:
        values = ", ".join(f"{name} {value}" for name, value in report.user_properties)
        terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {values}")
