"""`mobius inspect`: packages and files, in words and as JSON, without their weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from mobius.errors import ModelFileError, PackageLoadError
from mobius.inspection import Port, Weights, inspect_path
from mobius.package import ModelPackage

Run = Callable[..., Any]


@pytest.fixture
def package(tmp_path: Path, decoder: Callable[..., ModelPackage]) -> Path:
    built = decoder(execution_provider="cpu")
    built.with_source(name="org/name", revision="0123abc").save(tmp_path / "package")
    return tmp_path / "package"


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_a_package(run: Run, package: Path) -> None:
    result = run("inspect", package)
    assert result.exit_code == 0, result.output
    text = squeezed(result.stdout)
    assert text.startswith(
        "org/name at 0123abc for cpu in f32; takes rows padded on the right; built by Mobius "
    )
    assert "model (decoder): " in text
    assert "in input_ids INT64 [batch, sequence_length]" in text
    assert "in past_key_values.{0…1}.key FLOAT [batch, 2, past_sequence_length, 16]" in text
    assert "out logits FLOAT [batch, sequence_length, 64]" in text
    assert "2 com.microsoft::GroupQueryAttention" in text
    assert "model.onnx.data" in text
    assert "past_key_values.1.key" not in text
    assert "past_key_values.1.key" in run("inspect", package, "--all").stdout


def test_weights_are_counted_without_being_there(package: Path) -> None:
    with_data = inspect_path(package)
    sizes = with_data.graphs["model"].weights["FLOAT"]
    assert sizes.bytes == 4 * sizes.elements
    embedding, head = 64 * 64, 64 * 64
    layer = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 64 * 96 + 2 * 64
    rotary = 2 * 64 * 8
    small = sizes.elements - (embedding + head + 2 * layer + 64 + rotary)
    assert 0 <= small < 16  # scalars of the graph
    (package / "model.onnx.data").unlink()
    without = inspect_path(package)
    assert without.graphs["model"].weights == with_data.graphs["model"].weights
    assert "model.onnx.data" not in without.files


def test_as_json(run: Run, package: Path) -> None:
    result = run("inspect", package, "--json")
    content = json.loads(result.stdout)
    assert result.stderr == ""
    assert content["manifest"]["execution_provider"] == "cpu"
    assert content["manifest"]["source"] == {"name": "org/name", "revision": "0123abc"}
    graph = content["graphs"]["model"]
    assert graph["role"] == "decoder"
    assert graph["inputs"][0] == {
        "name": "input_ids",
        "dtype": "INT64",
        "shape": ["batch", "sequence_length"],
    }
    assert graph["operators"]["com.microsoft::GroupQueryAttention"] == 2
    assert graph["opset_imports"] == {"": 24, "com.microsoft": 1}
    assert content["files"]["mobius.json"] == (package / "mobius.json").stat().st_size


def test_a_file_of_someone_else(run: Run, tmp_path: Path) -> None:
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 24], producer_name: "them">
        g (float[N, 2] x, int4[3] packed) => (y) { y = Relu(x) }"""
    )
    packed = model.graph.inputs.pop()
    packed.const_value = ir.Tensor(np.array([1, 2, 3], ml_dtypes.int4), name="packed")
    model.graph.initializers["packed"] = packed
    ir.save(model, tmp_path / "m.onnx")
    inspection = inspect_path(tmp_path / "m.onnx")
    graph = inspection.graphs["model"]
    assert inspection.manifest is None
    assert graph.producer == "them"
    assert graph.inputs == (Port("x", "FLOAT", ("N", 2)),)
    assert graph.outputs == (Port("y", None, None),)
    assert graph.weights == {"INT4": Weights(1, 3, 2)}
    assert inspection.files == {"m.onnx": (tmp_path / "m.onnx").stat().st_size}
    text = squeezed(run("inspect", tmp_path / "m.onnx").stdout)
    assert text.startswith("model: 1 nodes, opset ai.onnx 24, written by them")
    assert "out y ? [?]" in text


@pytest.mark.parametrize(
    ("files", "hint"),
    [
        (["config.json"], "It looks like a checkpoint: `mobius build` makes a package of it."),
        (["a.onnx", "b.onnx"], "It has a.onnx, b.onnx: name one of them."),
        ([], "has it model.onnx. Name a package's folder, or an .onnx file."),
    ],
)
def test_a_folder_without_a_model(tmp_path: Path, files: list[str], hint: str) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(ModelFileError) as caught:
        inspect_path(tmp_path)
    assert str(caught.value).endswith(hint)


def test_errors_are_the_usual_ones(run: Run, tmp_path: Path) -> None:
    result = run("inspect", tmp_path / "nowhere.onnx")
    assert result.exit_code == 1
    assert "nowhere.onnx does not exist." in squeezed(result.stderr.replace("│", ""))
    (tmp_path / "mobius.json").write_text("{")
    with pytest.raises(PackageLoadError, match="is not JSON"):
        inspect_path(tmp_path)
