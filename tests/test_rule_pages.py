"""The pages of docs/rules are those that the rules' own modules give."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "rule_pages.py"


def test_pages_are_up_to_date(capsys):
    assert runpy.run_path(str(SCRIPT))["main"](["--check"]) == 0, capsys.readouterr().out
