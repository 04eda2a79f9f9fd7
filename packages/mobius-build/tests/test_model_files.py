"""Models named by path: which graphs there are, and of what dtype."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from mobius.errors import ModelFileError, PackageLoadError
from mobius.model_files import find_graphs, model_dtype, read_model_file
from mobius.package import ModelPackage

MakePackage = Callable[..., ModelPackage]


def test_graphs_of_a_package(tmp_path: Path, tiny_model: Callable[..., ir.Model]) -> None:
    models = {"vision": tiny_model(), "decoder": tiny_model()}
    package = ModelPackage(models, roles={"vision": "vision", "decoder": "decoder"})
    package.save(tmp_path / "graphs")
    with pytest.raises(ModelFileError, match="saved without weights"):
        find_graphs(tmp_path / "graphs")


def test_graphs_of_other_models(tmp_path: Path, make_package: MakePackage) -> None:
    make_package().save(tmp_path / "package")
    path = tmp_path / "package" / "model.onnx"
    assert find_graphs(tmp_path / "package") == {"model": path}
    (tmp_path / "package" / "mobius.json").unlink()
    assert find_graphs(tmp_path / "package") == {"model": path}
    assert find_graphs(path) == {"model": path}
    path.unlink()
    with pytest.raises(ModelFileError, match=r"neither mobius\.json nor model\.onnx"):
        find_graphs(tmp_path / "package")


def test_a_damaged_manifest(tmp_path: Path) -> None:
    (tmp_path / "mobius.json").write_text("{")
    with pytest.raises(PackageLoadError, match="is not JSON"):
        find_graphs(tmp_path)


def test_without_data_the_data_need_not_be_there(tmp_path: Path, make_package: MakePackage) -> None:
    make_package().save(tmp_path / "package")
    (tmp_path / "package" / "model.onnx.data").unlink()
    model = read_model_file(tmp_path / "package" / "model.onnx", with_data=False)
    weights = model.graph.initializers
    assert weights["layer_weight"].const_value is None
    assert weights["layer_weight"].dtype is ir.DataType.FLOAT
    assert weights["scale"].const_value is not None  # small constants are in the graph


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("g (float[2] x) => (float[2] y) <float16[3] w = {1, 2, 3}> { y = Neg(x) }", "FLOAT16"),
        ("g (float[2] x) => (float[2] y) <int64[3] w = {1, 2, 3}> { y = Neg(x) }", "FLOAT"),
        ("g (bfloat16[2] x) => (bfloat16[2] y) { y = Neg(x) }", "BFLOAT16"),
        ("g (int64[2] x) => (int64[2] y) { y = Neg(x) }", "FLOAT"),
        (
            "g (int64[2] x) => (int64[2] y) <float[1] s = {1}, float16[2] w = {1, 2}> "
            "{ y = Neg(x) }",
            "FLOAT16",
        ),
    ],
)
def test_the_dtype_of_most_weights(text: str, dtype: str) -> None:
    model = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : 24]> {text}')
    assert model_dtype(model) is ir.DataType[dtype]
