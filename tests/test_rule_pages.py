"""The pages of docs/rules are those that the rules' own modules give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "rule_pages.py"


def test_pages_are_up_to_date():
    # In a process of its own: other tests register execution providers in this one.
    command = [sys.executable, str(SCRIPT), "--check"]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
