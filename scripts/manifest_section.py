"""The members of `mobius.json`, as the docstrings of what writes it have them."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator

from ep_sections import table

from mobius.manifest import GenerationEntry, Manifest, ModelEntry, RuntimeOptions, SourceInfo

_PARTS = {
    "": Manifest,
    "source.": SourceInfo,
    "models.KEY.": ModelEntry,
    "runtime.": RuntimeOptions,
    "generation.": GenerationEntry,
}
_MEMBER = re.compile(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", re.DOTALL | re.MULTILINE)


def members() -> str:
    """Return a row for each member."""
    rows = [row for prefix, part in _PARTS.items() for row in _rows(prefix, part)]
    return table(("member", "says"), rows)


def _rows(prefix: str, part: type) -> Iterator[tuple[str, str]]:
    _, _, listed = (inspect.getdoc(part) or "").partition("Attributes:\n")
    said = {name: " ".join(text.split()) for name, text in _MEMBER.findall(listed)}
    for field in dataclasses.fields(part):
        yield f"`{prefix}{field.name}`", said[field.name]
