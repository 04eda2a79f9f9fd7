"""Move one package's version, and the ranges of the packages that depend on it.

    python3 scripts/bump.py mobius-eps minor
    python3 scripts/bump.py mobius-eps 1.0.0 --changelog

Siblings ask for `>=0.1,<0.2` below version 1 and for `>=1.2,<2` from then on: what may break them
is a minor version first and a major one later. A patch therefore moves no range. `--changelog`
also builds the package's CHANGELOG.md from its changelog.d/ (needs towncrier).
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("major", "minor", "patch")
_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
_ASSIGNMENT = re.compile(r'^__version__ = "([^"]*)"$', re.MULTILINE)

Version = tuple[int, int, int]


class BumpError(Exception):
    """The request or the tree does not allow the bump; nothing has been written."""


def parse(text: str) -> Version:
    """Return the three numbers of `major.minor.patch`.

    Raises:
        BumpError: If the text has another form.
    """
    match = _VERSION.fullmatch(text)
    if match is None:
        raise BumpError(f"{text!r} is not a version; MAJOR.MINOR.PATCH is needed, such as 0.2.0")
    major, minor, patch = (int(number) for number in match.groups())
    return major, minor, patch


def show(version: Version) -> str:
    """Return a version as text."""
    return ".".join(str(number) for number in version)


def moved(current: Version, to: str) -> Version:
    """Return the version after `current`.

    Args:
        current: The version now.
        to: `major`, `minor` or `patch`, or a version that is later than `current`.

    Raises:
        BumpError: If the version is not later, or has another form.
    """
    major, minor, patch = current
    if to in PARTS:
        return {
            "major": (major + 1, 0, 0),
            "minor": (major, minor + 1, 0),
            "patch": (major, minor, patch + 1),
        }[to]
    version = parse(to)
    if version <= current:
        raise BumpError(f"{to} is not later than {show(current)}, the version now")
    return version


def sibling_range(version: Version) -> str:
    """Return the range in which a package depends on a sibling of this version."""
    major, minor, _ = version
    end = f"0.{minor + 1}" if major == 0 else str(major + 1)
    return f">={major}.{minor},<{end}"


def version_file(root: Path, package: str) -> Path:
    """Return the file that holds the version of a package.

    Raises:
        BumpError: If there is no such package.
    """
    found = sorted((root / "packages" / package / "src").glob("*/__about__.py"))
    if len(found) != 1:
        names = sorted(path.parent.name for path in root.glob("packages/*/pyproject.toml"))
        raise BumpError(f"no package {package!r}; there are {', '.join(names)}")
    return found[0]


def bump(root: Path, package: str, to: str) -> tuple[Version, list[Path]]:
    """Write the new version of a package and the ranges of its siblings.

    Args:
        root: The repository.
        package: Name of the distribution, such as `mobius-eps`.
        to: `major`, `minor`, `patch` or a version.

    Returns:
        The new version and the files that were changed.

    Raises:
        BumpError: If the version cannot be moved so; nothing has been written then.
    """
    about = version_file(root, package)
    text = about.read_text("utf-8")
    assignment = _ASSIGNMENT.search(text)
    if assignment is None:
        raise BumpError(f'{about} has no line __version__ = "..."')
    version = moved(parse(assignment[1]), to)

    changes = {about: _ASSIGNMENT.sub(f'__version__ = "{show(version)}"', text, count=1)}
    # The name may carry an extra; a name that goes on, such as mobius-eps-x, is another package.
    dependency = re.compile(rf'"({re.escape(package)}(?:\[[^]"]*\])?)\s*[<>=~!][^"]*"')
    for path in sorted(root.glob("packages/*/pyproject.toml")):
        before = path.read_text("utf-8")
        after = dependency.sub(rf'"\g<1>{sibling_range(version)}"', before)
        if after != before:
            changes[path] = after

    for path, after in changes.items():
        path.write_text(after, "utf-8")
    return version, list(changes)


def main(arguments: list[str] | None = None) -> int:
    """Read the command line, bump, say what changed.

    Args:
        arguments: The command line without the program; `None` for the real one.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package", help="distribution, such as mobius-eps")
    parser.add_argument("to", help="major, minor, patch, or a version")
    parser.add_argument("--changelog", action="store_true", help="also run towncrier")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    options = parser.parse_args(arguments)
    root: Path = options.root
    if options.changelog and importlib.util.find_spec("towncrier") is None:
        print("bump.py: --changelog needs towncrier; activate .venv first", file=sys.stderr)
        return 2
    try:
        version, changed = bump(root, options.package, options.to)
    except BumpError as error:
        print(f"bump.py: {error}", file=sys.stderr)
        return 2
    print(f"{options.package} {show(version)}")
    for path in changed:
        print(f"  {path.relative_to(root)}")
    if not options.changelog:
        return 0
    folder = root / "packages" / options.package
    command = [sys.executable, "-m", "towncrier", "build", "--yes", "--version", show(version)]
    # It asks git about the folder that it runs in.
    return subprocess.run(command, cwd=folder, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
