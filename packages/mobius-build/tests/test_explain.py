"""What optimisation would do to a file, a package or a checkpoint, without their weights."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

import mobius.explain
from mobius.errors import ModelFileError
from mobius.explain import explain
from mobius.package import ModelPackage
from mobius.pipeline import STAGES
from mobius_eps import UnknownEpError

Decoder = Callable[..., ModelPackage]


@pytest.fixture
def package(tmp_path: Path, decoder: Decoder) -> Path:
    decoder().save(tmp_path / "package")
    return tmp_path / "package"


def explained(*arguments: Any, **options: Any) -> mobius.explain.Explanation:
    """Explain, whatever is warned about: the warnings are in the report."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return explain(*arguments, **options)


def test_a_package_without_its_data(package: Path) -> None:
    (package / "model.onnx.data").unlink()
    before = (package / "model.onnx").read_bytes()
    found = explained(package, ep="cpu")
    assert (found.model, found.ep, found.dtype) == (str(package), "cpu", ir.DataType.FLOAT)
    report = found.reports["model"]
    assert report.role == "decoder"
    # The mask of a finished package is made of primitives, so that nothing proves it causal.
    (first, second) = report.refusals
    assert (first.rule, first.op_type) == ("GQAFusion", "Attention")
    assert first.node != second.node
    assert "The mask of Attention" in first.reason
    assert len(report.warnings) == 1
    assert (package / "model.onnx").read_bytes() == before


def test_stages_that_run_and_those_that_do_not(package: Path) -> None:
    found = explained(package, ep="onnx-standard")
    ran = [stage.name for stage in found.reports["model"].stages]
    assert "SkipNorm" not in ran
    left_out = {each.name: each.reason for each in found.reports["model"].left_out}
    assert left_out["SkipNorm"] == (
        "It needs SkipSimplifiedLayerNormalization in the dtype. "
        "For onnx-standard supports_skip_layer_norm is False."
    )
    order = [stage.name for stage in STAGES]
    assert sorted([*ran, *left_out], key=order.index) == order


def test_a_file(package: Path) -> None:
    path = package / "model.onnx"
    found = explained(path, ep="cuda", dtype="f16", role="encoder")
    report = found.reports["model"]
    assert (report.ep, report.dtype, report.role) == ("cuda", ir.DataType.FLOAT16, "encoder")
    assert report.stage("GQAFusion") is None  # not for encoders
    assert explained(path).dtype is ir.DataType.FLOAT


def test_a_file_is_left_alone(package: Path) -> None:
    before = {path.name: path.read_bytes() for path in package.iterdir()}
    explained(package / "model.onnx", ep="onnx-standard")
    assert {path.name: path.read_bytes() for path in package.iterdir()} == before


def test_anything_else_is_built_without_weights(
    monkeypatch: pytest.MonkeyPatch, decoder: Decoder
) -> None:
    calls: dict[str, Any] = {}

    def build(model: str, **options: Any) -> ModelPackage:
        calls.update(options, model=model)
        return decoder(weights=False, execution_provider=options["execution_provider"])

    monkeypatch.setattr(mobius.explain, "build", build)
    found = explain("org/name", ep="cpu", opset=24, offline=True)
    assert calls["model"] == "org/name"
    assert calls["load_weights"] is False
    assert calls["offline"] is True
    assert calls["opset"] == 24
    assert calls["last_token_logits"] is None  # as the command builds it
    assert found.reports["model"].stage("GQAFusion").applications == 2  # type: ignore[union-attr]
    assert found.reports["model"].refusals == ()


def test_padding_and_quantization(package: Path) -> None:
    report = explained(package, ep="cpu", quantize="int4", padding_side="left").reports["model"]
    assert report.stage("Quantize").applications > 0  # type: ignore[union-attr,operator]
    for options in ({"quantize": "int5"}, {"padding_side": "both"}):
        with pytest.raises(ValueError, match=r"needed: |Unknown"):
            explained(package, ep="cpu", **options)


def test_json(package: Path) -> None:
    content = explained(package, ep="cpu").to_dict()
    assert json.loads(json.dumps(content)) == content
    graph = content["graphs"]["model"]
    assert [stage["name"] for stage in graph["stages"]][:2] == ["Cleanup", "RMSNormFusion"]
    stages = {stage["name"]: stage for stage in graph["stages"]}
    assert stages["GQAFusion"]["refusals"][0]["op_type"] == "Attention"
    assert "SeparateRoPE" in graph["left_out"]


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(UnknownEpError, match="Did you mean 'cuda'"):
        explain(tmp_path / "none.onnx", ep="cud")
    with pytest.raises(ValueError, match="Unknown dtype"):
        explain(tmp_path / "none.onnx", dtype="f61")
    with pytest.raises(ModelFileError, match="does not exist"):
        explain(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("not a model")
    with pytest.raises(ModelFileError, match="not a readable ONNX file"):
        explain(tmp_path / "text.onnx")
