"""The code on every page of the documentation runs, as a reader would run it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.docs.blocks import ROOT, PageError, parse, run_page
from tests.docs.processes import run_apart

PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").glob("[!_]*.md"),
    *(ROOT / "docs").glob("[!_]*/*.md"),
    *ROOT.glob("packages/*/README.md"),
    *ROOT.glob("examples/*/README.md"),
]
# Names of models on pages are folders here: there is no network.
MODELS = ("path/or/org/name",)


def fill(folder: Path) -> None:
    """Make a folder like the repository, with models in it."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    for name in MODELS:
        shutil.copytree(ROOT / "examples" / "stories" / "checkpoint", folder / name)


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in sorted(PAGES)]
)
def test_page(page: Path, tmp_path: Path) -> None:
    if any(parse(page)):
        fill(tmp_path)
        status, output = run_apart(run_page, page, cwd=tmp_path)
        assert status == 0, output


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("```python\nassert 1 == 2\n```", "AssertionError"),
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```", "line 8"),
        ("```console\nmobius bild a b\n```", "Did you mean 'build'?"),
        ("```console\nmobius inspect nowhere.onnx\n```", "exit code 1"),
        ("```console\npip install mobius-build[all]\n```", "no extras ['all']"),
        ("```console\npip install left-pad\n```", "nothing here needs left-pad"),
        ("```console\npip uninstall mobius-build\n```", "is no installation"),
        ("```console\npython scripts/dev.py tell\n```", "does not know tell"),
        ("```console\npython scripts/none.py\n```", "does not exist"),
        ("```console\nnox -s everything\n```", "no session everything"),
        ("```console\npytest packages/mobius\n```", "packages/mobius does not exist"),
        ("```console\nrm -r /\n```", "no one knows how to test 'rm'"),
        ("```json\n{\n```", "JSONDecodeError"),
        ("```toml\na = \n```", "TOMLDecodeError"),
    ],
)
def test_a_page_that_is_wrong_fails(tmp_path: Path, block: str, message: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n{block}\n", "utf-8")
    status, output = run_apart(run_page, page, cwd=tmp_path)
    assert status == 1
    assert message in " ".join(output.split())


def test_a_language_that_no_one_tests(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("```bash\nls\n```\n", "utf-8")
    with pytest.raises(PageError, match="no one tests blocks of 'bash'"):
        parse(tmp_path / "page.md")
