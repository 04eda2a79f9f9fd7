"""`mobius explain`: the plan and the refusals, as text, JSON and page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from mobius.package import ModelPackage

Run = Callable[..., Any]


@pytest.fixture
def package(tmp_path: Path, decoder: Callable[..., ModelPackage]) -> Path:
    decoder(weights=False).save(tmp_path / "package")
    return tmp_path / "package"


def squeezed(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


def test_plan_and_refusals(run: Run, package: Path) -> None:
    result = run("explain", package, "--ep", "cpu")
    assert result.exit_code == 0, result.output
    text = squeezed(result.stdout)
    assert text.startswith("model: decoder for cpu in f32, ")
    stages = [line.split()[:2] for line in result.stdout.splitlines() if line.startswith(" 2 ")]
    assert ["2", "GQAFusion"] in stages
    assert "GQAFusion left 2 Attention alone: The mask of Attention" in text
    assert (
        "PackedMultiHeadAttention did not run. It needs a model that is no decoder, and "
        "PackedMultiHeadAttention in the dtype. For cpu supports_packed_multi_head_attention is "
        "False." in text
    )
    assert "Not needed: RaiseOpset, " in text
    assert "SeparateRoPE" in text
    assert "UserWarning: GQA fusion expected" in result.stderr


def test_nothing_refused(run: Run, package: Path) -> None:
    result = run("explain", package, "--ep", "onnx-standard")
    assert result.exit_code == 0, result.output
    text = squeezed(result.stdout)
    assert "The stages that ran left no candidate as it was." in text
    assert "GQAFusion did not run. It needs a decoder, and GroupQueryAttention in the" in text
    assert result.stderr == ""


def test_every_node_on_request(run: Run, tmp_path: Path, package: Path) -> None:
    model = ir.load(package / "model.onnx")
    nodes = [node for node in model.graph if node.op_type == "Attention"]
    for index in range(5):
        attributes = {**nodes[0].attributes, "scale": ir.AttrFloat32("scale", 1.0 + index)}
        copy = ir.node("Attention", nodes[0].inputs, attributes, num_outputs=3)
        copy.name = f"copy{index}/Attention"
        model.graph.insert_after(nodes[0], copy)
        model.graph.outputs.append(copy.outputs[0])
        copy.outputs[0].name = f"copied{index}"
    path = tmp_path / "many.onnx"
    ir.save(model, path)
    short = run("explain", path, "--ep", "cpu")
    assert "and 2 more" in short.stdout
    full = run("explain", path, "--ep", "cpu", "--all")
    assert "and 2 more" not in full.stdout
    for index in range(5):
        assert f"copy{index}/Attention" in full.stdout


def test_json(run: Run, package: Path) -> None:
    result = run("explain", package, "--ep", "cuda", "--dtype", "half", "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert (content["ep"], content["dtype"]) == ("cuda", "FLOAT16")
    names = [stage["name"] for stage in content["graphs"]["model"]["stages"]]
    assert "GQAFusion" in names
    assert "GQAFusion" not in content["graphs"]["model"]["left_out"]


def test_page(run: Run, package: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run("explain", package, "--ep", "cpu", "--report", page).exit_code == 0
    assert "2 × Attention" in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.onnx"], "none.onnx does not exist"),
        (["text.onnx"], "text.onnx is not a readable ONNX file"),
        (["package", "--ep", "cud"], "Did you mean 'cuda'"),
        (["package", "--dtype", "f61"], "Unknown dtype 'f61'"),
        (["package", "--opset", "3"], "Unsupported opset 3"),
        (["package", "--report", "page.txt"], "is no name of an HTML page"),
    ],
)
def test_errors_are_a_panel_and_1(
    run: Run, package: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(package.parent)
    Path("text.onnx").write_text("not a model")
    result = run("explain", *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("╭─ Error ")
    assert message in squeezed(result.stderr)
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["a", "--opset", "new"]])
def test_wrong_usage_is_2(run: Run, arguments: list[str]) -> None:
    assert run("explain", *arguments).exit_code == 2
