"""Write what the documentation takes from code and measurements.

    python scripts/pages.py           write it
    python scripts/pages.py --check   fail where something is missing or out of date

Pages of rules are whole files in docs/rules. In other pages a part between two comments is written,
and the rest is by hand:

    <!-- generated: ep cuda -->
    ...
    <!-- end of generated -->
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import command_sections
import data_sections
import ep_sections
import gguf_sections
import manifest_section
import rule_pages

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
RULES = DOCS / "rules"
SECTIONS: dict[str, Callable[..., str]] = {
    "benchmarks": data_sections.benchmarks,
    "commands": command_sections.reference,
    "ep": ep_sections.facts,
    "exit codes": command_sections.exit_codes,
    "gguf": gguf_sections.architectures,
    "lacks": ep_sections.lacks,
    "manifest": manifest_section.members,
    "models": data_sections.models,
    "overview": ep_sections.overview,
    "trace": ep_sections.trace,
}
_PART = re.compile(r"(<!-- generated: ([a-z -]+?) -->\n).*?(<!-- end of generated -->)", re.DOTALL)


def filled(text: str) -> str:
    """Return the text of a page with its generated parts written anew."""

    def write(match: re.Match[str]) -> str:
        begin, what, end = match.groups()
        section = SECTIONS.get(what)
        if section is None:  # the last word says of what
            name, _, of = what.rpartition(" ")
            section = functools.partial(SECTIONS[name], of)
        return f"{begin}\n{section()}\n\n{end}"

    return _PART.sub(write, text)


def pages() -> Iterator[tuple[Path, str]]:
    """Yield every page that is generated, whole or in part, and its text."""
    for name, text in rule_pages.pages().items():
        yield RULES / name, text
    for path in sorted(DOCS.rglob("*.md")):
        if path.parent != RULES and "_build" not in path.parts:
            text = path.read_text("utf-8")
            if _PART.search(text):
                yield path, filled(text)


def main(arguments: list[str] | None = None) -> int:
    """Write or check the pages; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args(arguments)
    written = dict(pages())
    stale = sorted(set(RULES.glob("*.md")) - set(written))
    old = [
        path
        for path, text in written.items()
        if not path.is_file() or path.read_text("utf-8") != text
    ]
    if options.check:
        for path in [*stale, *old]:
            print(f"out of date: {path.relative_to(ROOT)}; run python scripts/pages.py")
        return int(bool(old or stale))
    RULES.mkdir(parents=True, exist_ok=True)
    for path in stale:
        path.unlink()
    for path in old:
        path.write_text(written[path], "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
