"""The generated parts of pages that show measurements: verified models, benchmarks."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ep_sections import table

from mobius.families import Family, known_families
from mobius_eps.builtin import BUILTIN_EPS

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
DTYPES = ("f32", "f16", "bf16")


def models() -> str:
    """Return a row for each verified family: where it ran, how close, what it has."""
    verified = [family for family in known_families() if family.cells]
    if not verified:
        return "Nothing has been measured yet."
    eps = [each.name for each in BUILTIN_EPS if any(each.name in f.verified() for f in verified)]
    dtypes = [dtype for dtype in DTYPES if any(f.largest(dtype) is not None for f in verified)]
    header = ("model_type", *eps, *(f"largest, {dtype}" for dtype in dtypes), "features")
    rows = (
        (
            f"`{family.model_type}`",
            *(", ".join(family.verified().get(ep, ())) or "-" for ep in eps),
            *(number(family.largest(dtype)) for dtype in dtypes),
            ", ".join(family.features),
        )
        for family in verified
    )
    return "\n\n".join([_summary(verified), table(header, rows), *_refused(verified)])


def number(value: float | None) -> str:
    """Return a difference with two digits."""
    return "-" if value is None else f"{value:.1e}"


def _summary(verified: list[Family]) -> str:
    cells = sum(len(family.cells) for family in verified)
    versions = {family.versions for family in verified}
    listed = "; ".join(", ".join(f"{n} {v}" for n, v in each) for each in sorted(versions))
    return f"{len(verified)} model types, {cells} builds that were run or refused, with {listed}."


def _refused(verified: list[Family]) -> list[str]:
    reasons: dict[str, dict[str, None]] = collections.defaultdict(dict)
    for family in verified:
        for cell in family.cells:
            if cell.refused is not None:
                name = f"{cell.layout} for {cell.ep} {cell.dtype} ({cell.scenario})"
                reasons[cell.refused].setdefault(name)
    rows = [(reason, ", ".join(where)) for reason, where in reasons.items()]
    return ["Refused, with the reason:", table(("reason", "builds"), rows)] if rows else []


def benchmarks() -> str:
    """Return the tables of every file in benchmarks/results, as the files have them."""
    files = sorted(RESULTS.glob("*.json"))
    parts = []
    for file in files:
        content = json.loads(file.read_text("utf-8"))
        parts += [f"## {file.stem.replace('_', ' ').capitalize()}", *_tables(content, "###")]
    return "\n\n".join(parts) or "Nothing has been measured yet."


def _tables(content: Mapping[str, Any], heading: str) -> list[str]:
    """Return a measurement's own values as a line, and what is below as tables."""
    plain = {name: each for name, each in content.items() if not isinstance(each, dict | list)}
    parts = [_line(plain)]
    for name, each in content.items():
        rows = list(each.items()) if isinstance(each, dict) else list(_numbered(each))
        if name in plain or not rows:
            continue
        if all(isinstance(row, dict) and _is_flat(row) for _, row in rows):
            parts.append(_rows(name, rows))
        elif isinstance(each, dict) and not any(map(_nested, each.values())):
            parts.append(f"{_words(name)}: {_line(each)}")
        elif isinstance(each, dict):
            parts += [f"{heading} {_words(name)}", *_tables(each, f"{heading}#")]
        else:
            parts.append(f"{_words(name)}: {', '.join(map(str, each))}")
    return [part for part in parts if part]


def _line(plain: Mapping[str, Any]) -> str:
    return ", ".join(f"{_words(name)} {_value(each)}" for name, each in plain.items())


def _numbered(content: object) -> Iterator[tuple[str, Any]]:
    if isinstance(content, list):
        yield from (("", row) for row in content)


def _rows(name: str, rows: list[tuple[str, dict[str, Any]]]) -> str:
    columns = list(dict.fromkeys(column for _, row in rows for column in row))
    first = [_words(name)] if any(key for key, _ in rows) else []
    lines = (
        [*([_words(key)] if first else []), *(_value(row.get(column, "")) for column in columns)]
        for key, row in rows
    )
    return table([*first, *map(_words, columns)], lines)


def _is_flat(row: dict[str, Any]) -> bool:
    return not any(
        isinstance(each, dict) or (isinstance(each, list) and any(map(_nested, each)))
        for each in row.values()
    )


def _nested(value: object) -> bool:
    return isinstance(value, dict | list)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return "" if value is None else str(value)
