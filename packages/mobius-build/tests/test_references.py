"""References into files that are there: several graphs, copies, and what goes on overwriting."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from mobius.atomic_files import atomic_files
from mobius.errors import PackageSaveError
from mobius.package import ModelPackage
from mobius.references import copy_file

ModelOf = Callable[..., ir.Model]

TEXT = """<ir_version: 10, opset_import: ["" : 24]>
g (float[2, 64] x, float[64, 64] w) => (float[2, 64] y) { y = MatMul(x, w) }"""


def stored(path: Path, seed: int = 0) -> ir.ExternalTensor:
    """Write a weight to a file and return it as a tensor in that file."""
    values = np.random.default_rng(seed).standard_normal((64, 64), np.float32)
    path.write_bytes(values.tobytes())
    return ir.ExternalTensor(
        path, 0, values.nbytes, ir.DataType.FLOAT, shape=ir.Shape([64, 64]), name="w"
    )


@pytest.fixture
def two(model_of: ModelOf) -> Callable[[ir.TensorProtocol], ModelPackage]:
    """Return a function that makes a package of two graphs with one weight."""

    def make(weight: ir.TensorProtocol) -> ModelPackage:
        models = {"decoder": model_of(TEXT), "encoder": model_of(TEXT)}
        roles = {"decoder": "decoder", "encoder": "encoder"}
        package = ModelPackage(models, roles=roles)
        package.apply_weights({"w": weight})
        return package

    return make


def test_each_of_several_graphs_has_the_file_beside_it(
    two: Callable[[ir.TensorProtocol], ModelPackage], tmp_path: Path
) -> None:
    """Runtimes read nothing from outside of a graph's folder."""
    weight = stored(tmp_path / "weights.bin")
    two(weight).save(tmp_path / "out", weights="reference")
    for key in ("decoder", "encoder"):
        copy = tmp_path / "out" / key / "weights.bin"
        assert copy.read_bytes() == (tmp_path / "weights.bin").read_bytes()
    loaded = ModelPackage.load(tmp_path / "out")
    for model in loaded.values():
        tensor = model.graph.initializers["w"].const_value
        assert tensor is not None
        np.testing.assert_array_equal(tensor.numpy(), weight.numpy())


def test_several_graphs_cannot_share_a_file_where_it_is(
    two: Callable[[ir.TensorProtocol], ModelPackage], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(PackageSaveError, match="beside the folders of several graphs"):
        two(stored(out / "weights.bin")).save(out, weights="reference")
    assert list(out.iterdir()) == [out / "weights.bin"]


def test_the_name_of_a_file_that_saving_writes(model_of: ModelOf, tmp_path: Path) -> None:
    package = ModelPackage({"model": model_of(TEXT)}, roles={"model": "decoder"})
    package.apply_weights({"w": stored(tmp_path / "model.onnx")})
    with pytest.raises(PackageSaveError, match=r"model\.onnx holds weights .* saving writes"):
        package.save(tmp_path / "out", weights="reference")


@pytest.mark.parametrize("kernel", [True, False])
def test_copies_are_whole_with_and_without_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: bool
) -> None:
    if not kernel:

        def refuse(*arguments: object) -> int:
            raise OSError("Invalid cross-device link")

        monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    monkeypatch.setattr("mobius.references._CHUNK_BYTES", 1000)
    data = np.random.default_rng(0).integers(0, 256, 12345, np.uint8).tobytes()
    (tmp_path / "a").write_bytes(data)
    counts: list[int] = []
    copy_file(tmp_path / "a", tmp_path / "b", lambda count, name: counts.append(count))
    assert (tmp_path / "b").read_bytes() == data
    assert sum(counts) == len(data)
    assert len(counts) > 1


def write(target: Path, files: dict[str, str], stale: tuple[str, ...] = ()) -> None:
    with atomic_files(target, stale=stale) as staging:
        for name, content in files.items():
            (staging / name).write_text(content)


def test_stale_files_go_with_the_file_that_referred_to_them(tmp_path: Path) -> None:
    target = tmp_path / "mobius.json"
    (tmp_path / "model.onnx.data").write_text("not ours")
    write(target, {"mobius.json": "1"}, stale=("model.onnx.data",))
    assert (tmp_path / "model.onnx.data").read_text() == "not ours"  # nothing referred to it yet
    write(target, {"mobius.json": "2"}, stale=("model.onnx.data",))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"mobius.json": "2"}


def test_stale_files_come_back_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "mobius.json"
    write(target, {"mobius.json": "1", "model.onnx.data": "a"})

    def fail(path: Path) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("mobius.atomic_files.sync", fail)  # the last step, all files being moved
    with pytest.raises(PackageSaveError, match="No space left"):
        write(target, {"mobius.json": "2"}, stale=("model.onnx.data",))
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"mobius.json": "1", "model.onnx.data": "a"}
