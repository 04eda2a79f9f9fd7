"""`run_page`: every code block of a Markdown page, in order, in the working directory.

Python blocks share one namespace. Of console blocks, `mobius` commands run, and of others it is
checked that the extra, script, session or folder that they name exists. Any other block must be of
a language that is only shown. Blocks in HTML comments, as Sybil has them, run and are not shown.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

from sybil import Document, Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser
from tests.docs.processes import run_apart

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "packages"
PROJECT = "pyproject.toml"
EXTRAS = "optional-dependencies"
RUN = frozenset({"console", "json", "python", "toml"})
# Shown, not run: what programs print.
SHOWN = frozenset({"text"})
_FENCE = re.compile(r"^```(.*)$", re.MULTILINE)
_DIRECTIVE = re.compile(r"\{[a-z:-]+\}")


class PageError(AssertionError):
    """A block of a page says what is not so."""


def _pip(arguments: list[str]) -> None:
    """Check `pip install NAME[extra]`: ours with an extra that it has, or something we need.

    Ours may be named by its folder.
    """
    if arguments[:1] != ["install"]:
        raise PageError(f"pip {arguments} is no installation")
    projects = {path.parent.name: path for path in PACKAGES.glob("*/pyproject.toml")}
    needed = "".join(path.read_text("utf-8") for path in [ROOT / PROJECT, *projects.values()])
    for argument in arguments[1:]:
        name, _, extras = argument.removeprefix("packages/").rstrip("]").partition("[")
        if name in projects:
            content = tomllib.loads(projects[name].read_text("utf-8"))["project"]
            missing = set(filter(None, extras.split(","))) - content.get(EXTRAS, {}).keys()
            if missing:
                raise PageError(f"{name} has no extras {sorted(missing)}")
        elif re.search(rf'"{re.escape(name)}[<>=~]', needed) is None:
            raise PageError(f"nothing here needs {name}")


def _python(arguments: list[str]) -> None:
    """Check `python SCRIPT ...`: the script exists and knows what it is given."""
    script = ROOT / arguments[0]
    if not script.is_file():
        raise PageError(f"{arguments[0]} does not exist")
    text = script.read_text("utf-8")
    for each in arguments[1:]:
        is_word = re.fullmatch(r"--[a-z-]+|[a-z]+", each) is not None
        if is_word and f'"{each}"' not in text:
            raise PageError(f"{arguments[0]} does not know {each}")


def _nox(arguments: list[str]) -> None:
    """Check `nox -s SESSION ...`: the session exists."""
    if arguments == ["-l"]:
        return
    tree = ast.parse((ROOT / "noxfile.py").read_text("utf-8"))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    name = arguments[1].partition("(")[0]
    if arguments[0] != "-s" or name not in functions | strings:
        raise PageError(f"noxfile.py has no session {name}")


def _files(arguments: list[str]) -> None:
    """Check that every argument with a slash is a file or folder of this repository."""
    for each in arguments:
        if "/" in each and not (ROOT / each).exists():
            raise PageError(f"{each} does not exist")


def _mobius(arguments: list[str]) -> None:
    """Run the command."""
    status, output = run_apart(_main, arguments, cwd=Path.cwd())
    if status:
        raise PageError(f"exit code {status}\n{output}")


def _main(arguments: list[str]) -> None:
    from mobius.cli import main

    sys.argv = ["mobius", *arguments]
    main()


def _nothing(arguments: list[str]) -> None:
    """Look at nothing: the tool is another project's."""


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    ".": _nothing,  # activates an environment
    "hatch": _nothing,
    "mobius": _mobius,
    "nox": _nox,
    "pip": _pip,
    "pre-commit": _nothing,
    "pytest": _files,
    "python": _python,
    "python3": _python,
    "uv": _nothing,
}


def _console(example: Example) -> None:
    for line in example.parsed.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        try:
            if words[0] not in COMMANDS:
                raise PageError(f"no one knows how to test {words[0]!r}")
            COMMANDS[words[0]](words[1:])
        except PageError as error:
            where = f"{example.path}, block of line {example.line}: {line}"
            raise PageError(f"{where}\n{error}") from None


def _json(example: Example) -> None:
    json.loads(example.parsed)


def _toml(example: Example) -> None:
    tomllib.loads(example.parsed)


def parse(page: Path) -> Document:
    """Return a page with its blocks.

    Raises:
        PageError: if it has a block of a language that no one looks at.
    """
    document = Sybil(
        [
            SkipParser(),
            PythonCodeBlockParser(),
            CodeBlockParser("console", _console),
            CodeBlockParser("json", _json),
            CodeBlockParser("toml", _toml),
        ]
    ).parse(page)
    for match in _FENCE.finditer(document.text):
        language = match[1].strip()
        if language and not _DIRECTIVE.match(language) and language not in RUN | SHOWN:
            raise PageError(f"{page}: no one tests blocks of {language!r}")
    return document


def run_page(page: Path) -> None:
    """Run the blocks of a page."""
    for example in parse(page):
        example.evaluate()
