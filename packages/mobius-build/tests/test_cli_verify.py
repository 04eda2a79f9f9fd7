"""`mobius verify`: the table, the JSON, the verdict and the exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from mobius.package import ModelPackage

Run = Callable[..., Any]

HEAD = '<ir_version: 10, opset_import: ["" : 24]> g (float[n, 3] x) => (float[n, 3] y)'


def write(path: Path, body: str) -> Path:
    ir.save(ir.from_onnx_text(f"{HEAD} {{ {body} }}"), path)
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write(tmp_path / "good.onnx", "y = Exp(x)")


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    return write(
        tmp_path / "wrong.onnx", "c = Constant <value_float = 0.5> () z = Exp(x) y = Add(z, c)"
    )


def squeezed(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


def test_the_same_is_0(run: Run, good: Path) -> None:
    result = run("verify", good, good)
    assert result.exit_code == 0, result.output
    assert squeezed(result.stdout).endswith("Same: 1 outputs; the largest difference is 0 in y")
    (row,) = [line.split() for line in result.stdout.splitlines() if line.strip().startswith("y ")]
    assert row == ["y", "run", "4x3", "float32", "0", "0", "0", "of", "12"]


def test_a_wrong_model_is_1_and_the_largest_difference_is_printed(
    run: Run, good: Path, wrong: Path
) -> None:
    result = run("verify", good, wrong)
    assert result.exit_code == 1
    text = squeezed(result.stdout)
    assert "y (run): 12 of 12 numbers differ by more than 0.0001 + 0.0001 |A|." in text
    assert text.endswith("Different: 1 of 1 outputs; the largest difference is 0.5 in y")
    assert result.stderr == ""
    assert run("verify", good, wrong, "--atol", "0.6").exit_code == 0


def test_nan_is_1(run: Run, good: Path, tmp_path: Path) -> None:
    nan = write(tmp_path / "nan.onnx", "z = Sub(x, x) y = Div(z, z)")
    result = run("verify", good, nan)
    assert result.exit_code == 1
    assert "12 of 12 numbers are NaN or infinite in one of the two only" in squeezed(result.stdout)
    assert run("verify", nan, nan).exit_code == 1
    assert run("verify", nan, nan, "--allow-nan").exit_code == 0
    assert json.loads(run("verify", good, nan, "--json").stdout)["same"] is False


def test_another_interface_is_1(run: Run, good: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    text = HEAD.replace("y)", "y, float[n, 3] z)") + " { y = Exp(x) z = Neg(x) }"
    ir.save(ir.from_onnx_text(text), other)
    result = run("verify", good, other)
    assert result.exit_code == 1
    assert "Only B has the output 'z'." in result.stdout
    assert "Different: the interface; the largest difference is 0 in y" in squeezed(result.stdout)


def test_json(run: Run, good: Path, wrong: Path) -> None:
    result = run("verify", good, wrong, "--json", "--runs", 2, "--dim", "n=5", "--seed", 7)
    assert result.exit_code == 1
    content = json.loads(result.stdout)
    assert (content["a"], content["b"], content["same"]) == (str(good), str(wrong), False)
    assert [output["seed"] for output in content["outputs"]] == [7, 8]
    assert content["outputs"][0]["shapes"] == [[5, 3], [5, 3]]
    assert content["outputs"][0]["max_abs"] == pytest.approx(0.5, rel=1e-6)


def test_many_outputs_are_cut_short(
    run: Run, tmp_path: Path, decoder: Callable[..., ModelPackage]
) -> None:
    for ep in ("default", "cpu"):
        decoder(execution_provider=ep).save(tmp_path / ep)
    result = run("verify", tmp_path / "default", tmp_path / "cpu", "--batch", 3, "--past", 4)
    assert result.exit_code == 0, result.output
    assert "Same: 5 outputs" in result.stdout
    assert "logits" in result.stdout
    other = decoder(seed=1)
    other.save(tmp_path / "other")
    result = run("verify", tmp_path / "default", tmp_path / "other", "--no-padding")
    assert result.exit_code == 1
    assert "Different: 5 of 5 outputs" in result.stdout


def test_outputs_beyond_the_eighth_are_shown_on_request(run: Run, tmp_path: Path) -> None:
    outputs = ", ".join(f"float[n] y{i}" for i in range(12))
    nodes = " ".join(f"y{i} = Exp(x)" for i in range(12))
    text = f'<ir_version: 10, opset_import: ["" : 24]> g (float[n] x) => ({outputs}) {{ {nodes} }}'
    ir.save(ir.from_onnx_text(text), tmp_path / "many.onnx")
    result = run("verify", tmp_path / "many.onnx", tmp_path / "many.onnx")
    assert "and 4 more outputs; --all shows them" in result.stdout
    result = run("verify", tmp_path / "many.onnx", tmp_path / "many.onnx", "--all")
    assert "more outputs" not in result.stdout
    assert "y11" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["good.onnx", "none.onnx"], "none.onnx does not exist"),
        (["good.onnx", "text.onnx"], "text.onnx is not a readable ONNX file"),
        (["good.onnx", "good.onnx", "--dim", "m=3"], "No input has a dimension called 'm'"),
        (["good.onnx", "good.onnx", "--provider", "NoSuch"], "This ONNX Runtime has no ['NoSuch']"),
    ],
)
def test_errors_are_a_panel_and_1(
    run: Run, good: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(good.parent)
    Path("text.onnx").write_text("not a model")
    result = run("verify", *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("╭─ Error ")
    assert message in squeezed(result.stderr)
    assert result.stdout == ""


def test_without_onnx_runtime_the_panel_says_what_to_install(
    run: Run, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    result = run("verify", good, good)
    assert result.exit_code == 1
    assert result.stderr.startswith("╭─ Error ")
    assert "pip install 'mobius-build[ort]'" in squeezed(result.stderr)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["a"],
        ["a", "b", "--batch", "0"],
        ["a", "b", "--dim", "n"],
        ["a", "b", "--dim", "n=x"],
        ["a", "b", "--below", "=3"],
        ["a", "b", "--atol", "-1"],
    ],
)
def test_wrong_usage_is_2(run: Run, arguments: list[str]) -> None:
    assert run("verify", *arguments).exit_code == 2


def test_integer_inputs_can_be_limited(run: Run, tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 24]> g (int64[n] ids) => (int64[n] y) {
    y = Neg(ids) }"""
    ir.save(ir.from_onnx_text(text), tmp_path / "m.onnx")
    path = tmp_path / "m.onnx"
    result = run("verify", path, path, "--below", "ids=1000", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["outputs"][0]["values"][0] < -2
