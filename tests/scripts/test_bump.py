"""`scripts/bump.py` on a copy of the packages: versions, ranges, refusals, the changelog."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SIBLINGS = {
    "mobius-ir-rules": set(),
    "mobius-eps": set(),
    "mobius-components": {"mobius-ir-rules"},
    "mobius-build": {"mobius-components", "mobius-eps", "mobius-ir-rules"},
    "mobius-hf": {"mobius-build", "mobius-components", "mobius-eps", "mobius-ir-rules"},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with only what bump.py reads and writes, every version at 0.1.0."""
    for package in SIBLINGS:
        source, target = REPOSITORY / "packages" / package, tmp_path / "packages" / package
        (target / "changelog.d").mkdir(parents=True)
        for path in source.glob("src/*/__about__.py"):
            about = target / path.relative_to(source)
            about.parent.mkdir(parents=True)
            about.write_text('"""Version."""\n\n__version__ = "0.1.0"\n')
        shutil.copy(source / "pyproject.toml", target)
        shutil.copy(source / "CHANGELOG.md", target)
    return tmp_path


def bump(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = str(REPOSITORY / "scripts" / "bump.py")
    return subprocess.run(
        [sys.executable, "-W", "error", script, *arguments, "--root", str(root)],
        capture_output=True,
        text=True,
        check=False,
    )


def snapshot(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()
    }


def version(root: Path, package: str) -> str:
    (about,) = (root / "packages" / package).glob("src/*/__about__.py")
    return about.read_text().split('"')[-2]


def sibling_ranges(root: Path, package: str) -> dict[str, str]:
    """Ranges of siblings, the optional ones included: {"mobius-eps": ">=0.1,<0.2"}."""
    text = (root / "packages" / package / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    extras = [item for items in project.get("optional-dependencies", {}).values() for item in items]
    found = {}
    for item in [*project["dependencies"], *extras]:
        name, separator, rest = item.partition(">=")
        if name in SIBLINGS:
            found[name] = separator + rest
    return found


@pytest.mark.parametrize(
    ("to", "expected", "ranges"),
    [
        ("patch", "0.1.1", ">=0.1,<0.2"),
        ("minor", "0.2.0", ">=0.2,<0.3"),
        ("major", "1.0.0", ">=1.0,<2"),
        ("0.9.4", "0.9.4", ">=0.9,<0.10"),
        ("2.3.1", "2.3.1", ">=2.3,<3"),
    ],
)
@pytest.mark.parametrize("package", SIBLINGS)
def test_moves_the_version_and_the_ranges_above(
    root: Path, package: str, to: str, expected: str, ranges: str
) -> None:
    before = snapshot(root)
    done = bump(root, package, to)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"{package} {expected}"
    assert version(root, package) == expected
    for other, siblings in SIBLINGS.items():
        if other != package:
            assert version(root, other) == "0.1.0"
        found = sibling_ranges(root, other)
        assert siblings <= set(found)
        for sibling, value in found.items():
            assert value == (ranges if sibling == package else ">=0.1,<0.2")
    after = snapshot(root)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {line.strip() for line in done.stdout.splitlines()[1:]}


def test_nothing_else_in_a_file_changes(root: Path) -> None:
    before = snapshot(root)["packages/mobius-build/pyproject.toml"]
    bump(root, "mobius-eps", "minor")
    after = snapshot(root)["packages/mobius-build/pyproject.toml"]
    assert after == before.replace('"mobius-eps>=0.1,<0.2"', '"mobius-eps>=0.2,<0.3"')
    assert after != before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mobius-eps", "0.1.0"), "0.1.0 is not later than 0.1.0, the version now"),
        (("mobius-eps", "0.0.9"), "0.0.9 is not later than 0.1.0, the version now"),
        (
            ("mobius-eps", "0.2"),
            "'0.2' is not a version; MAJOR.MINOR.PATCH is needed, such as 0.2.0",
        ),
        (
            ("mobius-nothing", "minor"),
            "no package 'mobius-nothing'; there are mobius-build, mobius-components, mobius-eps, "
            "mobius-hf, mobius-ir-rules",
        ),
    ],
)
def test_refusals_write_nothing(root: Path, arguments: tuple[str, str], message: str) -> None:
    before = snapshot(root)
    done = bump(root, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"bump.py: {message}\n"
    assert snapshot(root) == before


def test_changelog_is_built_from_fragments(root: Path) -> None:
    package = root / "packages" / "mobius-eps"
    fragment = package / "changelog.d" / "+bump.added.md"
    fragment.write_text("A new provider, `npu`.\n")
    done = bump(root, "mobius-eps", "minor", "--changelog")
    assert done.returncode == 0, done.stderr
    changelog = (package / "CHANGELOG.md").read_text()
    assert "## 0.2.0 (" in changelog
    assert "### Added\n\n- A new provider, `npu`.\n" in changelog
    assert not fragment.exists()
