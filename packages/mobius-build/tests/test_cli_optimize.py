"""`mobius optimize`: what it prints and writes, and its exit codes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mobius.package import ModelPackage
from mobius.verify import verify

Run = Callable[..., Any]


@pytest.fixture
def source(tmp_path: Path, decoder: Callable[..., ModelPackage]) -> Path:
    decoder().save(tmp_path / "in")
    return tmp_path / "in" / "model.onnx"


def squeezed(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


def test_into_another_folder(run: Run, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    result = run("optimize", source, out, "--ep", "onnx-standard")
    assert result.exit_code == 0, result.output
    text = squeezed(result.stdout)
    assert text.startswith(f"Optimised {source} for onnx-standard in f32 to {out} (0.0 MB) and ")
    assert "out.onnx.data (0.3 MB): " in text
    assert "keep them together" not in text
    assert verify(source, out).same


def test_into_the_same_folder(run: Run, source: Path) -> None:
    out = source.with_name("out.onnx")
    result = run("optimize", source, out)
    assert result.exit_code == 0, result.output
    assert "It reads model.onnx.data too: keep them together" in squeezed(result.stdout)
    copied = run("optimize", source, source.with_name("own.onnx"), "--copy-weights")
    assert "keep them together" not in copied.stdout


def test_trace_and_report(run: Run, source: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = run(
        *("optimize", source, tmp_path / "out.onnx", "--ep", "cpu", "--trace", "--report", page)
    )
    assert result.exit_code == 0, result.output
    text = squeezed(result.stderr)
    assert "model: decoder for cpu in f32" in text
    assert "GQAFusion left 2 Attention alone: The mask of Attention" in text
    assert "UserWarning: GQA fusion expected" in text
    html = page.read_text("utf-8")
    assert "<title>model.onnx for cpu</title>" in html
    assert "2 × Attention" in html


def test_options_reach_the_optimiser(run: Run, source: Path, tmp_path: Path) -> None:
    result = run(
        *("optimize", source, tmp_path / "out.onnx", "--ep", "cpu"),
        *("--dtype", "float32", "--role", "encoder", "--opset", "23", "--trace"),
    )
    assert result.exit_code == 0, result.output
    assert "model: encoder for cpu in f32" in result.stderr
    assert "UserWarning" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.onnx", "out.onnx"], "missing.onnx does not exist"),
        (["text.onnx", "out.onnx"], "text.onnx is not a readable ONNX file"),
        (["model.onnx", "out.onnx", "--ep", "cud"], "Did you mean 'cuda'"),
        (["model.onnx", "out.onnx", "--dtype", "f61"], "Unknown dtype 'f61'"),
        (["model.onnx", "out.onnx", "--role", "decodr"], "Did you mean 'decoder'"),
        (["model.onnx", "text.onnx"], "text.onnx exists. Choose another name"),
        (["model.onnx", "model.onnx", "--overwrite"], "is the input and is not replaced"),
        (["model.onnx", "no/out.onnx"], "does not exist. Make it"),
        (["model.onnx", "out.onnx", "--report", "text.onnx"], "is no name of an HTML page"),
    ],
)
def test_errors_are_a_panel_and_1(
    run: Run, source: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(source.parent)
    Path("text.onnx").write_text("not a model")
    before = sorted(Path().iterdir())
    result = run("optimize", *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("╭─ Error ")
    assert message in squeezed(result.stderr)
    assert result.stdout == ""
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize(
    "arguments", [[], ["in.onnx"], ["a", "b", "c"], ["a", "b", "--opset", "x"]]
)
def test_wrong_usage_is_2(run: Run, arguments: list[str]) -> None:
    assert run("optimize", *arguments).exit_code == 2


def test_help_documents_exit_codes(run: Run) -> None:
    for command in ("build", "optimize", "verify", "explain"):
        assert "Exit codes: 0" in run(command, "--help").stdout
