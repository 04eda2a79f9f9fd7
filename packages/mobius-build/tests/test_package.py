"""`ModelPackage`: the mapping, what `save` writes, and what `load` reads back."""

from __future__ import annotations

import json
import os
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from mobius.errors import PackageError, PackageLoadError, PackageSaveError, WeightsError
from mobius.manifest import SourceInfo
from mobius.package import ModelPackage

MakePackage = Callable[..., ModelPackage]
TensorsFor = Callable[..., dict[str, ir.TensorProtocol]]
ModelOf = Callable[..., ir.Model]


def content(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a folder, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_package_is_a_mapping_of_its_graphs(tiny_model: ModelOf) -> None:
    models = {"decoder": tiny_model(), "encoder": tiny_model()}
    package = ModelPackage(models, roles={"decoder": "decoder", "encoder": "encoder"})
    assert list(package) == ["decoder", "encoder"]
    assert package["encoder"] is models["encoder"]
    assert len(package) == 2
    assert "vision" not in package
    assert repr(package) == (
        "ModelPackage(['decoder', 'encoder'], ep='default', dtype=unknown, without weights)"
    )


@pytest.mark.parametrize("key", ["", "..", "a/b", "a b", "mobius.json", "model\n"])
def test_keys_must_be_able_to_name_folders(tiny_model: ModelOf, key: str) -> None:
    with pytest.raises(PackageError, match="cannot name a graph"):
        ModelPackage({key: tiny_model()}, roles={key: "decoder"})


def test_keys_that_differ_in_case_alone_are_refused(tiny_model: ModelOf) -> None:
    models = {"model": tiny_model(), "Model": tiny_model()}
    with pytest.raises(PackageError, match="'Model' cannot name a graph"):
        ModelPackage(models, roles=dict.fromkeys(models, "decoder"))


def test_every_graph_needs_a_role(tiny_model: ModelOf) -> None:
    with pytest.raises(PackageError, match=r"graphs \['model'\], roles for \[\]"):
        ModelPackage({"model": tiny_model()}, roles={})


def test_one_graph_lies_at_the_top(make_package: MakePackage, tmp_path: Path) -> None:
    make_package().save(tmp_path / "new" / "parents" / "out")
    out = tmp_path / "new" / "parents" / "out"
    assert set(content(out)) == {"model.onnx", "model.onnx.data", "mobius.json"}
    onnx.checker.check_model(out / "model.onnx", full_check=True)


def test_c139_several_graphs_have_a_folder_each(
    tiny_model: ModelOf, tensors_for: TensorsFor, tmp_path: Path
) -> None:
    models = {"decoder": tiny_model(), "encoder": tiny_model("float16")}
    package = ModelPackage(models, roles={"decoder": "decoder", "encoder": "encoder"})
    package.apply_weights(tensors_for(package))
    package.save(tmp_path / "out")
    assert set(content(tmp_path / "out")) == {
        "decoder/model.onnx",
        "decoder/model.onnx.data",
        "encoder/model.onnx",
        "encoder/model.onnx.data",
        "mobius.json",
    }
    loaded = ModelPackage.load(tmp_path / "out")
    assert list(loaded) == ["decoder", "encoder"]
    assert loaded.roles == {"decoder": "decoder", "encoder": "encoder"}


def test_onnx_runtime_computes_what_numpy_computes(
    make_package: MakePackage, tensors_for: TensorsFor, tmp_path: Path
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    package = make_package(weights=False)
    tensors = tensors_for(package)
    package.apply_weights(tensors)
    package.save(tmp_path / "out")
    session = runtime.InferenceSession(
        tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"]
    )
    x = np.random.default_rng(1).standard_normal((3, 16), dtype=np.float32)
    weight, bias, head = (tensor.numpy() for tensor in tensors.values())
    (y,) = session.run(None, {"x": x})
    np.testing.assert_allclose(y, ((x @ weight + bias) * 0.5) @ head, rtol=1e-5, atol=1e-5)
    del session  # C142: Windows does not remove files that a session has mapped


def test_files_are_copied_byte_for_byte(make_package: MakePackage, tmp_path: Path) -> None:
    data = bytes(range(256)) * 3 + b"\r\n"
    (tmp_path / "blob").write_bytes(data)
    (tmp_path / "tokenizer.json").symlink_to("blob")  # as in a hub's cache
    package = make_package().with_source(
        name="org/name", revision="abc", files=[tmp_path / "tokenizer.json"]
    )
    package.save(tmp_path / "out")
    copied = tmp_path / "out" / "tokenizer.json"
    assert copied.read_bytes() == data
    assert not copied.is_symlink()
    loaded = ModelPackage.load(tmp_path / "out")
    assert loaded.files == (copied,)
    assert loaded.source is not None
    assert (loaded.source.name, loaded.source.revision) == ("org/name", "abc")


def test_a_package_does_not_say_where_its_user_keeps_the_checkpoint(
    make_package: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "secret" / "checkpoint"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    for number, name in enumerate([str(folder), "../checkpoint", "."]):
        package = make_package().with_source(name=name, revision=None)
        package.save(tmp_path / str(number))
        manifest = (tmp_path / str(number) / "mobius.json").read_text("utf-8")
        assert "secret" not in manifest
        assert ModelPackage.load(tmp_path / str(number)).source == SourceInfo("checkpoint")
    kept = make_package().with_source(name="org/name", revision=None)
    kept.save(tmp_path / "kept")
    assert ModelPackage.load(tmp_path / "kept").source == SourceInfo("org/name")


@pytest.mark.parametrize("name", ["mobius.json", "Model.onnx", "model.onnx.data"])
def test_a_file_whose_name_is_taken_is_refused(
    make_package: MakePackage, tmp_path: Path, name: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).touch()
    package = make_package().with_source(name="m", revision=None, files=[tmp_path / "in" / name])
    with pytest.raises(PackageSaveError, match=f"already has a {name}"):
        package.save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_files_of_one_name_are_refused(make_package: MakePackage, tmp_path: Path) -> None:
    paths = [tmp_path / folder / "vocab.json" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.touch()
    package = make_package().with_source(name="m", revision=None, files=paths)
    with pytest.raises(PackageSaveError, match=r"already has a vocab\.json"):
        package.save(tmp_path / "out")


def test_saving_twice_gives_the_same_bytes(make_package: MakePackage, tmp_path: Path) -> None:
    package = make_package(dtype="float16")
    package.save(tmp_path / "a")
    package.save(tmp_path / "b")
    make_package(dtype="float16").save(tmp_path / "c")
    assert content(tmp_path / "a") == content(tmp_path / "b") == content(tmp_path / "c")


def test_the_graph_file_is_the_same_without_weights(
    make_package: MakePackage, tmp_path: Path
) -> None:
    make_package().save(tmp_path / "with")
    make_package(weights=False).save(tmp_path / "without")
    with_weights, without = content(tmp_path / "with"), content(tmp_path / "without")
    assert set(without) == {"model.onnx", "mobius.json"}
    assert without["model.onnx"] == with_weights["model.onnx"]
    assert json.loads(with_weights["mobius.json"])["weights"] is True
    assert json.loads(without["mobius.json"])["weights"] is False


def test_a_package_without_weights_is_a_valid_graph(
    make_package: MakePackage, tmp_path: Path
) -> None:
    make_package(weights=False).save(tmp_path / "out")
    proto = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False)
    inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True)
    shapes = {
        info.name: [dim.dim_value or dim.dim_param for dim in info.type.tensor_type.shape.dim]
        for info in inferred.graph.value_info
    }
    assert shapes["projected"] == ["batch", 8]


def test_onnx_runtime_names_the_data_file_that_is_missing(
    make_package: MakePackage, tmp_path: Path
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    make_package(weights=False).save(tmp_path / "out")
    with pytest.raises(Exception, match=r"model\.onnx\.data"):
        runtime.InferenceSession(
            tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"]
        )


def test_weights_can_be_bound_after_loading(
    make_package: MakePackage, tensors_for: TensorsFor, tmp_path: Path
) -> None:
    make_package().save(tmp_path / "expected")
    make_package(weights=False).save(tmp_path / "without")
    package = ModelPackage.load(tmp_path / "without")
    assert not package.is_loaded
    package.apply_weights(tensors_for(package))
    assert package.is_loaded
    package.save(tmp_path / "out")
    expected, out = content(tmp_path / "expected"), content(tmp_path / "out")
    assert out["model.onnx.data"] == expected["model.onnx.data"]
    assert out["model.onnx"] == expected["model.onnx"]


def test_a_loaded_package_is_saved_as_it_was(make_package: MakePackage, tmp_path: Path) -> None:
    package = make_package(dtype="bfloat16")
    package.dtype = ir.DataType.BFLOAT16
    package.ep = "cuda"
    package.save(tmp_path / "a")
    loaded = ModelPackage.load(tmp_path / "a")
    assert loaded.is_loaded
    assert (loaded.ep, loaded.dtype) == ("cuda", ir.DataType.BFLOAT16)
    loaded.save(tmp_path / "b")
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_a_package_that_is_loaded_in_part_is_refused(
    make_package: MakePackage, tmp_path: Path
) -> None:
    package = make_package()
    package.parameters()["layer_bias"][0].const_value = None
    assert not package.is_loaded
    with pytest.raises(WeightsError, match=r"loaded in part.*: layer_bias") as caught:
        package.save(tmp_path / "out")
    assert caught.value.missing == ("layer_bias",)
    assert not (tmp_path / "out").exists()


def test_progress_reaches_the_total(make_package: MakePackage, tmp_path: Path) -> None:
    calls: list[tuple[int, int, str]] = []
    make_package().save(tmp_path / "out", progress=lambda *call: calls.append(call))
    total = 4 * (16 * 8 + 8 + 8 * 32)
    # Two threads write: which tensor comes first is open, and the bytes add up.
    sizes = {"layer_weight": 512, "layer_bias": 32, "head_weight": 1024}
    assert {name for _, _, name in calls} == sizes.keys()
    done = 0
    for bytes_done, bytes_in_total, name in calls:
        done += sizes[name]
        assert (bytes_done, bytes_in_total) == (done, total)
    assert done == total


def test_c110_one_tensor_is_in_memory_at_a_time(tmp_path: Path) -> None:
    size, count = 1 << 20, 12
    lines = [f"float[{size}] w{index}" for index in range(count)]
    body = [f"a{i + 1} = Add({'x' if i == 0 else f'a{i}'}, w{i})" for i in range(count)]
    text = (
        f'<ir_version: 10, opset_import: ["" : 24]> g (float[{size}] x) => '
        f"(float[{size}] a{count}) <{', '.join(lines)}> {{ {' '.join(body)} }}"
    )
    model = ir.from_onnx_text(text)
    for node in model.graph:
        value = node.inputs[1]
        assert value is not None
        value.shape, value.type = ir.Shape([size]), ir.TensorType(ir.DataType.FLOAT)
        model.graph.initializers[str(value.name)] = value
    package = ModelPackage({"model": model}, roles={"model": "decoder"})
    package.apply_weights(
        {
            name: ir.LazyTensor(
                lambda: ir.tensor(np.ones(size, np.float32)), ir.DataType.FLOAT, ir.Shape([size])
            )
            for name in package.parameters()
        }
    )
    tracemalloc.start()
    package.save(tmp_path / "out")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "out" / "model.onnx.data").stat().st_size == 4 * size * count
    assert peak < 3 * 4 * size


def test_offsets_beyond_4_gb(tmp_path: Path) -> None:
    size = 1 << 30
    text = f"""<ir_version: 10, opset_import: ["" : 24]>
    g (float[{size}] x, float[{size}] a, float[{size}] b, float[1] c) => (float[{size}] y) {{
      p = Add(x, a)
      q = Add(p, b)
      y = Add(q, c)
    }}"""
    model = ir.from_onnx_text(text)
    for value in list(model.graph.inputs)[1:]:
        model.graph.inputs.remove(value)
        model.graph.initializers[str(value.name)] = value
    ModelPackage({"model": model}, roles={"model": "decoder"}).save(tmp_path / "out")
    proto = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False)
    offsets = [
        {item.key: item.value for item in tensor.external_data}["offset"]
        for tensor in proto.graph.initializer
    ]
    assert offsets == ["0", str(4 * size), str(8 * size)]


def test_threads_save_the_same_files_as_one_after_the_other(
    make_package: MakePackage, tmp_path: Path
) -> None:
    packages = [make_package(dtype="float16", seed=seed) for seed in range(4)]
    packages += packages[:2]  # two threads share a package
    for index, package in enumerate(packages):
        package.save(tmp_path / f"sequential{index}")
    start = threading.Barrier(len(packages))
    errors: list[BaseException] = []

    def save(index: int, package: ModelPackage) -> None:
        try:
            start.wait()
            package.save(tmp_path / f"threaded{index}")
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=save, args=(index, package))
        for index, package in enumerate(packages)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for index in range(len(packages)):
        assert content(tmp_path / f"threaded{index}") == content(tmp_path / f"sequential{index}")


def save_tiny(make_package: MakePackage, tmp_path: Path) -> Path:
    """Save a package with a tokenizer file and return its folder."""
    (tmp_path / "tokenizer.json").write_text("{}")
    package = make_package().with_source(
        name="m", revision=None, files=[tmp_path / "tokenizer.json"]
    )
    package.save(tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.parametrize("name", ["mobius.json", "model.onnx", "model.onnx.data", "tokenizer.json"])
def test_load_names_a_missing_file(make_package: MakePackage, tmp_path: Path, name: str) -> None:
    out = save_tiny(make_package, tmp_path)
    (out / name).unlink()
    with pytest.raises(PackageLoadError, match=name):
        ModelPackage.load(out)


def test_load_names_the_data_that_is_cut_off(make_package: MakePackage, tmp_path: Path) -> None:
    out = save_tiny(make_package, tmp_path)
    data = out / "model.onnx.data"
    size = data.stat().st_size
    os.truncate(data, size - 1)
    with pytest.raises(PackageLoadError, match=rf"cut off: it has {size - 1} bytes.*{size}"):
        ModelPackage.load(out)


def test_load_refuses_a_damaged_graph(make_package: MakePackage, tmp_path: Path) -> None:
    out = save_tiny(make_package, tmp_path)
    (out / "model.onnx").write_bytes(b"\xff" * 100)
    with pytest.raises(PackageLoadError, match=r"model\.onnx is not a readable ONNX file"):
        ModelPackage.load(out)


def test_load_refuses_what_is_not_a_folder(tmp_path: Path) -> None:
    with pytest.raises(PackageLoadError, match="is not a folder"):
        ModelPackage.load(tmp_path / "nothing")


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd"])
def test_c111_load_refuses_weights_outside_the_package(
    make_package: MakePackage, tmp_path: Path, location: str
) -> None:
    out = save_tiny(make_package, tmp_path)
    proto = onnx.load(out / "model.onnx", load_external_data=False)
    for item in proto.graph.initializer[0].external_data:
        if item.key == "location":
            item.value = location
    (out / "model.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(PackageLoadError, match="outside the package"):
        ModelPackage.load(out)


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_c111_a_package_of_links_loads(
    make_package: MakePackage, tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    out = save_tiny(make_package, tmp_path)
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in out.iterdir():
        link(path, linked / path.name)
    tensor = ModelPackage.load(linked)["model"].graph.initializers["head_weight"].const_value
    expected = make_package()["model"].graph.initializers["head_weight"].const_value
    assert tensor is not None
    assert expected is not None
    np.testing.assert_array_equal(tensor.numpy(), expected.numpy())
