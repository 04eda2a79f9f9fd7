"""The generated parts of the page about the command line, from the commands themselves."""

from __future__ import annotations

import re
import subprocess
import sys

from ep_sections import table

from mobius.cli import EXIT_CODES


def reference() -> str:
    """Return every command with its arguments and options, as typer's own tool writes them."""
    command = [sys.executable, "-m", "typer", "mobius.cli", "utils", "docs", "--name", "mobius"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    text = text.partition("**Commands**:")[2].partition("\n## ")[2]
    # Usage lines are no commands to run.
    return re.sub(r"```console\n\$ ", "```text\n", f"### {text}".replace("\n## ", "\n### ")).strip()


def exit_codes() -> str:
    """Return the exit codes as a table."""
    return table(("exit code", "meaning"), ((str(code), what) for code, what in EXIT_CODES.items()))
