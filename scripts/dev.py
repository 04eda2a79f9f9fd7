"""One command each: run the story, check the code, pass the tests. Sets up `.venv` first.

    python3 scripts/dev.py story          build the bundled model for the CPU and tell a story
    python3 scripts/dev.py check          lint, formatting, types, import layers
    python3 scripts/dev.py docs           the site, in docs/_build
    python3 scripts/dev.py test [ARG ...]  the tests; arguments go to pytest

Needs only Python 3.11 or newer with `venv` and pip. What was set up once is used again until a
dependency changes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
# In the order of their layers: each needs only those before it.
PACKAGES = ("mobius-ir-rules", "mobius-eps", "mobius-components", "mobius-build", "mobius-hf")
CHECKS = (
    ("ruff", "check"),
    ("ruff", "format", "--check"),
    ("mypy",),
    ("lint-imports",),
)


def tool(name: str) -> str:
    """Return the path of a program in `.venv`."""
    return str(VENV / ("Scripts" if os.name == "nt" else "bin") / name)


def run(*command: str) -> None:
    """Run a program in the repository root and stop with its exit status if that is not 0."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    if status != 0:
        print(f"failed with exit status {status}: {' '.join(command)}", file=sys.stderr)
        raise SystemExit(status if status > 0 else 1)


def fingerprint(requirements: Iterable[str]) -> str:
    """Return a hash of what is installed: requirements, metadata and versions of the packages."""
    digest = hashlib.sha256()
    files = [ROOT / "pyproject.toml"]
    for package in PACKAGES:
        folder = ROOT / "packages" / package
        files += [folder / "pyproject.toml", *sorted(folder.glob("src/*/__about__.py"))]
    for part in (*requirements, *(file.read_text("utf-8") for file in files)):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def make_environment() -> None:
    """Create `.venv`, again if the interpreter changed or the repository was moved."""
    record = VENV / "made-for"
    wanted = f"{sys.version}\n{ROOT}\n"
    if record.is_file() and record.read_text("utf-8") == wanted:
        return
    print(f"creating {VENV}", flush=True)
    venv.create(VENV, with_pip=True, clear=True)
    record.write_text(wanted, "utf-8")


def set_up(profile: str, requirements: list[str]) -> None:
    """Make `.venv` and install the five packages and `requirements`, unless that is done.

    Args:
        profile: Name of the set of requirements.
        requirements: Arguments for `pip install`.
    """
    make_environment()
    stamp = VENV / f"{profile}.stamp"
    wanted = fingerprint(requirements)
    if stamp.is_file() and stamp.read_text("utf-8") == wanted:
        return
    print("installing the packages and what they need; the first time takes minutes", flush=True)
    pip = (tool("python"), "-m", "pip", "install", "--quiet", "--no-input")
    # Dependency groups need pip 25.1; Python 3.11 brings an older one.
    run(*pip, "--upgrade", "pip>=25.1")
    editable = [argument for p in PACKAGES for argument in ("-e", f"packages/{p}")]
    run(*pip, *editable, *requirements)
    stamp.write_text(wanted, "utf-8")


def story(arguments: list[str]) -> None:
    """Build the bundled model for the CPU, run it, print the story."""
    set_up("story", ["mobius-build[run]"])
    run(tool("python"), "examples/stories/run.py", *arguments)


def check(arguments: list[str]) -> None:
    """Run every check that needs no test."""
    set_up("dev", ["--group", "dev"])
    for command in CHECKS:
        print(f"$ {' '.join(command)}", flush=True)
        run(tool(command[0]), *command[1:], *arguments)


def docs(arguments: list[str]) -> None:
    """Make the site; a warning is an error."""
    set_up("docs", ["--group", "docs"])
    sphinx = ("-m", "sphinx", "-W", "--keep-going", "-q", *arguments)
    run(tool("python"), *sphinx, "docs", "docs/_build")


def test(arguments: list[str]) -> None:
    """Run the tests."""
    set_up("dev", ["--group", "dev"])
    run(tool("python"), "-m", "pytest", *arguments)


COMMANDS = {"story": story, "check": check, "docs": docs, "test": test}


def main() -> None:
    """Read the command line and run one command."""
    # This file runs before anything has checked the interpreter.
    if sys.version_info < (3, 11):  # noqa: UP036
        raise SystemExit(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]}")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    COMMANDS[options.command](options.arguments)


if __name__ == "__main__":
    main()
