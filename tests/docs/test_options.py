"""C138: an option that a message, a help text or a page names is one that a command has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from mobius.cli import app

ROOT = Path(__file__).parents[2]
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
SOURCES = sorted(ROOT.glob("packages/*/src/**/*.py"))
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md"), *ROOT.glob("packages/*/README.md")])
# Options of other programs, and the program.
OTHERS = {
    "--all-packages": "uv sync",
    "--changelog": "scripts/bump.py",
    "--group": "uv sync",
    "--record": "nox -s parity",
}


def _options() -> set[str]:
    """Return every option of every command."""
    found: set[str] = set()
    pending = [typer.main.get_command(app)]
    while pending:
        command = pending.pop()
        pending += getattr(command, "commands", {}).values()
        context = command.make_context(command.name, [], resilient_parsing=True)
        for parameter in command.get_params(context):
            found |= {*parameter.opts, *parameter.secondary_opts}
    return found


def _strings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _named(path: Path) -> set[str]:
    texts = _strings(path) if path.suffix == ".py" else [path.read_text(encoding="utf-8")]
    return {option for text in texts for option in OPTION.findall(text)}


@pytest.mark.parametrize("paths", [SOURCES, PAGES], ids=["sources", "pages"])
def test_c138_options_that_are_named_exist(paths: list[Path]) -> None:
    known = _options() | OTHERS.keys()
    named = {path.relative_to(ROOT): _named(path) for path in paths}
    assert set().union(*named.values()) & _options(), "no option was found anywhere"
    assert {path: found - known for path, found in named.items() if found - known} == {}


def test_c138_every_option_of_another_program_is_still_named() -> None:
    named = set().union(*map(_named, [*SOURCES, *PAGES]))
    assert OTHERS.keys() <= named
