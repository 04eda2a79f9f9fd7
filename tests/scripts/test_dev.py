"""`scripts/dev.py`: what it installs and when, and the exit statuses that it passes on."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "dev.py"


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, on an empty repository, with every program only recorded."""
    spec = importlib.util.spec_from_file_location("dev", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    for folder in (tmp_path, *(tmp_path / "packages" / p for p in module.PACKAGES)):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pyproject.toml").write_text("[project]\n")
    module.ran = []
    module.made = []

    def create(folder: Path, **options: bool) -> None:
        folder.mkdir(exist_ok=True)
        for stamp in folder.iterdir():
            stamp.unlink()
        module.made.append(options)

    monkeypatch.setattr(module, "run", lambda *command: module.ran.append(command))
    monkeypatch.setattr(module.venv, "create", create)
    return module


def test_the_first_time_it_installs_everything(dev: ModuleType) -> None:
    dev.test(["-k", "rotary"])
    upgrade, install, tests = dev.ran
    assert upgrade[-2:] == ("--upgrade", "pip>=25.1")
    assert install[-12:] == (
        *("-e", "packages/mobius-ir-rules"),
        *("-e", "packages/mobius-eps"),
        *("-e", "packages/mobius-components"),
        *("-e", "packages/mobius-build"),
        *("-e", "packages/mobius-hf"),
        *("--group", "dev"),
    )
    assert tests[1:] == ("-m", "pytest", "-k", "rotary")
    assert dev.made == [{"with_pip": True, "clear": True}]


def test_the_second_time_it_installs_nothing(dev: ModuleType) -> None:
    dev.test([])
    dev.ran.clear()
    dev.test([])
    assert [command[1:] for command in dev.ran] == [("-m", "pytest")]
    assert len(dev.made) == 1


@pytest.mark.parametrize("name", ["pyproject.toml", "src/mobius_hf/__about__.py"])
def test_a_changed_dependency_or_version_installs_again(dev: ModuleType, name: str) -> None:
    dev.test([])
    dev.ran.clear()
    file = dev.ROOT / "packages" / "mobius-hf" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("__version__ = '9'\n")
    dev.test([])
    assert len(dev.ran) == 3
    assert len(dev.made) == 1


def test_another_interpreter_makes_another_environment(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev.test([])
    dev.ran.clear()
    monkeypatch.setattr(dev.sys, "version", "3.99")
    dev.test([])
    assert len(dev.ran) == 3
    assert len(dev.made) == 2


def test_a_failed_installation_is_not_remembered(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*command: str) -> None:
        raise SystemExit(1)

    with monkeypatch.context() as patch:
        patch.setattr(dev, "run", fail)
        with pytest.raises(SystemExit):
            dev.test([])
    dev.test([])
    assert len(dev.ran) == 3


def test_check_runs_every_tool(dev: ModuleType) -> None:
    dev.check([])
    assert [Path(command[0]).name for command in dev.ran[2:]] == [
        *("ruff", "ruff"),
        *("mypy", "lint-imports"),
    ]


def test_story_needs_no_reference_implementation(dev: ModuleType) -> None:
    dev.story([])
    assert dev.ran[1][-1] == "mobius-build[run]"
    assert "--group" not in dev.ran[1]
    assert dev.ran[2][1:] == ("examples/stories/run.py",)


def test_exit_statuses_are_passed_on(tmp_path: Path) -> None:
    code = (
        "import runpy, sys\n"
        f"run = runpy.run_path({str(SCRIPT)!r})['run']\n"
        "run(sys.executable, '-c', 'raise SystemExit(7)')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert done.stderr.startswith("failed with exit status 7: ")


def test_unknown_commands_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "deploy"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "invalid choice: 'deploy'" in done.stderr
