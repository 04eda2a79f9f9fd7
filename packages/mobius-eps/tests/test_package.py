"""The package as users meet it: its README runs, importing it is light, its names are there."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import mobius_eps


def readme() -> str:
    """The README of the sources, or, beside an installed wheel, of the wheel."""
    file = Path(__file__).parents[1] / "README.md"
    if file.is_file():
        return file.read_text("utf-8")
    return str(importlib.metadata.metadata("mobius-eps")["Description"])


def python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )


def test_the_examples_of_the_readme_run() -> None:
    examples = re.findall(r"```python\n(.*?)```", readme(), re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        done = python(example)
        assert (done.returncode, done.stderr) == (0, ""), example


def test_import_is_light() -> None:
    heavy = ["torch", "transformers", "huggingface_hub", "onnxruntime", "onnxscript"]
    done = python(
        f"import sys, mobius_eps; print([name for name in {heavy} if name in sys.modules])"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_every_public_name_is_there() -> None:
    assert [name for name in mobius_eps.__all__ if not hasattr(mobius_eps, name)] == []
    assert mobius_eps.__all__ == sorted(mobius_eps.__all__)


def test_the_version_is_that_of_the_distribution() -> None:
    assert mobius_eps.__version__ == importlib.metadata.version("mobius-eps")
