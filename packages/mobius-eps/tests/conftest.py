"""Fixtures: a real installed distribution that advertises execution providers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

InstallPlugin = Callable[..., str]


@pytest.fixture
def install_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InstallPlugin]:
    """Yield a function that puts a distribution with one entry point on `sys.path`."""
    modules: list[str] = []

    def install(name: str, source: str, target: str) -> str:
        """Install distribution `name` whose module `<name>_plugin` has `source`.

        Returns:
            The name of the module.
        """
        folder = tmp_path / name
        module = f"{name}_plugin"
        info = folder / f"{name}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(
            f"[mobius.execution_providers]\n{name} = {module}:{target}\n"
        )
        (folder / f"{module}.py").write_text(source)
        monkeypatch.syspath_prepend(str(folder))
        modules.append(module)
        return module

    yield install
    for module in modules:
        sys.modules.pop(module, None)
