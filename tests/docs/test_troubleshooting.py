"""The page about messages has every kind of error, and the messages that it quotes exist."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re

import pytest
from tests.docs.blocks import PACKAGES, ROOT

from mobius_eps import MobiusError

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
# Not MobiusErrors, because their packages are below mobius_eps or beside it.
ALSO = {
    "ConfigError": "mobius_components",
    "InvariantError": "mobius_ir_rules",
    "OpsetError": "mobius_ir_rules",
    "ShapeInferenceError": "mobius_ir_rules",
    "UnloadedWeightError": "mobius_ir_rules",
}
MODULES = ("mobius", "mobius_components", "mobius_eps", "mobius_hf", "mobius_ir_rules")


def errors() -> set[str]:
    """Return the names of all errors that a user can meet."""
    found = set()
    for name in MODULES:
        package = importlib.import_module(name)
        for info in pkgutil.walk_packages(package.__path__, f"{name}."):
            if info.name.endswith("__main__"):
                continue
            for each in vars(importlib.import_module(info.name)).values():
                if not inspect.isclass(each) or not issubclass(each, Exception):
                    continue
                own = each.__module__.partition(".")[0] in MODULES
                if own and (issubclass(each, MobiusError) or each.__name__ in ALSO):
                    found.add(each.__name__)
    return found - {"MobiusError"}


def templates() -> str:
    """Return every text in the sources, `…` standing for what is put in."""
    found = []
    for path in PACKAGES.glob("*/src/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value.replace("%s", "…"))
    return "\n".join(found)


def test_every_error_has_its_place() -> None:
    headings = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^### .*$", PAGE, re.MULTILINE))))
    assert errors() == headings


def test_quoted_messages_exist() -> None:
    quoted = re.findall(r"^\| `([^`|]+)` \|", PAGE, re.MULTILINE)
    quoted += re.findall(r"^`([^`]*…[^`]*)`", PAGE, re.MULTILINE)
    assert len(quoted) > 50
    text = templates()
    for message in quoted:
        # Between placeholders, since one message may be put together from several texts.
        for part in re.split(r"\s*…[.,:;]?\s*", message):
            assert part in text, message


@pytest.mark.parametrize("name", ["UnknownEpError", "WeightsError"])
def test_the_search_finds_errors(name: str) -> None:
    assert name in errors()
