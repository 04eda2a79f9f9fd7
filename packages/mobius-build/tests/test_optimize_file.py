"""An ONNX file in, an optimised one out: the same numbers, and the input as it was."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import mobius.optimize_file
from mobius.errors import ModelFileError, PackageSaveError
from mobius.external_data import to_external_proto
from mobius.model_files import read_model_file
from mobius.optimize_file import optimize_file
from mobius.package import ModelPackage
from mobius.tasks import CausalLMTask
from mobius.verify import verify
from mobius_components import ArchitectureConfig
from mobius_components.models import CausalLMModel
from mobius_eps import UnknownEpError, build_context, get_ep
from mobius_ir_rules.passes import InvariantError
from mobius_ir_rules.testing import op_counts

TensorsFor = Callable[..., dict[str, ir.TensorProtocol]]
CONFIG = ArchitectureConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
)


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def source(tmp_path: Path, tensors_for: TensorsFor) -> Path:
    """Return a decoder as it is before any optimisation, with its data in another file."""
    with build_context(get_ep("default"), ir.DataType.FLOAT):
        package = CausalLMTask().build(CausalLMModel(CONFIG), CONFIG)
    package.apply_weights(
        {
            name: ir.tensor(tensor.numpy() * np.float32(0.1), name=name)
            for name, tensor in tensors_for(package).items()
        }
    )
    package.save(tmp_path / "in")
    return tmp_path / "in" / "model.onnx"


@pytest.fixture
def embedded(source: Path, tmp_path: Path) -> Path:
    """Return the same model as one file."""
    path = tmp_path / "one" / "model.onnx"
    path.parent.mkdir()
    onnx.save_model(onnx.load(source), path)
    return path


def locations(path: Path) -> dict[str, tuple[str, int]]:
    """Return where the data of each external initializer are."""
    return {
        name: (str(tensor.location), tensor.offset or 0)
        for name, value in ir.load(path).graph.initializers.items()
        if isinstance(tensor := value.const_value, ir.ExternalTensor)
    }


@pytest.mark.parametrize("ep", ["cpu", "default", "onnx-standard"])
def test_another_folder_gets_all_data(source: Path, tmp_path: Path, ep: str) -> None:
    before = digests(source.parent)
    out = tmp_path / "out"
    out.mkdir()
    result = optimize_file(source, out / "small.onnx", ep=ep)
    assert digests(source.parent) == before
    assert sorted(path.name for path in out.iterdir()) == ["small.onnx", "small.onnx.data"]
    assert (result.data, result.shared) == (out / "small.onnx.data", ())
    assert {location for location, _ in locations(out / "small.onnx").values()} == {
        "small.onnx.data"
    }
    shutil.move(source.parent, tmp_path / "moved")  # nothing is read from there
    assert verify(tmp_path / "moved" / "model.onnx", out / "small.onnx").same
    counts = op_counts(ir.load(out / "small.onnx"))
    assert counts["com.microsoft::GroupQueryAttention"] == (2 if ep == "cpu" else 0)
    assert dict(result.report.operators_after) == dict(counts)


def test_copied_data_are_byte_for_byte(source: Path, tmp_path: Path) -> None:
    optimize_file(source, tmp_path / "out.onnx")  # whose FusedMatMul takes weights as they are
    before = read_model_file(source).graph.initializers
    after = read_model_file(tmp_path / "out.onnx").graph.initializers
    assert after.keys() == before.keys()
    for name, value in after.items():
        original = before[name].const_value
        assert value.const_value is not None
        assert original is not None
        assert value.const_value.tobytes() == original.tobytes()


def test_the_same_folder_shares_the_data(source: Path, tmp_path: Path) -> None:
    before = digests(source.parent)
    where = locations(source)
    out = source.with_name("cpu.onnx")
    result = optimize_file(source, out, ep="cpu")
    assert digests(source.parent).items() >= before.items()
    assert result.shared == ("model.onnx.data",)
    after = locations(out)
    # Two packed projections are new; everything else is where it was.
    new = {name for name, (location, _) in after.items() if location == "cpu.onnx.data"}
    assert new == {f"model.layers.{i}.self_attn.qkv_proj.weight" for i in range(2)}
    assert all(after[name] == where[name] for name in after.keys() - new)
    assert result.data is not None
    assert result.data.stat().st_size == 2 * (64 + 32 + 32) * 64 * 4
    assert verify(source, out).same


def test_nothing_is_written_where_no_data_change(source: Path) -> None:
    result = optimize_file(source, source.with_name("default.onnx"))
    assert result.data is None
    assert not source.with_name("default.onnx.data").exists()
    assert verify(source, source.with_name("default.onnx")).same


def test_copy_weights(source: Path) -> None:
    out = source.with_name("own.onnx")
    result = optimize_file(source, out, copy_weights=True)
    assert result.shared == ()
    assert {location for location, _ in locations(out).values()} == {"own.onnx.data"}
    assert verify(source, out).same


def test_one_file_stays_one_file(embedded: Path, source: Path) -> None:
    result = optimize_file(embedded, embedded.with_name("out.onnx"), ep="cpu")
    assert (result.data, result.shared) == (None, ())
    assert sorted(path.name for path in embedded.parent.iterdir()) == ["model.onnx", "out.onnx"]
    assert verify(source, result.path).same


def test_one_file_that_is_too_large_gets_a_data_file(
    embedded: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mobius.optimize_file, "EMBED_AT_MOST", 1000)
    result = optimize_file(embedded, embedded.with_name("out.onnx"), ep="cpu")
    assert result.data == embedded.with_name("out.onnx.data")
    assert verify(source, result.path).same


def test_data_of_constants_in_nodes_come_along(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "c.bin").write_bytes(np.array([2, 3], np.float32).tobytes())
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 24]> g (float[2] x) => (float[2] y) '
        "{ c = Constant <value = float[2] {0, 0}> () y = Mul(x, c) }"
    )
    proto = ir.to_proto(model)
    tensor = proto.graph.node[0].attribute[0].t
    tensor.ClearField("float_data")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="c.bin")
    onnx.save_model(proto, tmp_path / "in" / "m.onnx")
    optimize_file(tmp_path / "in" / "m.onnx", tmp_path / "out.onnx")
    shutil.rmtree(tmp_path / "in")
    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "out.onnx")
    (y,) = session.run(None, {"x": np.ones(2, np.float32)})
    assert y.tolist() == [2, 3]


def test_dtype_is_that_of_most_weights(
    tmp_path: Path, decoder: Callable[..., ModelPackage]
) -> None:
    package = decoder(dtype="f16")
    package.save(tmp_path / "half")
    report = optimize_file(tmp_path / "half" / "model.onnx", tmp_path / "out.onnx").report
    assert report.dtype is ir.DataType.FLOAT16
    chosen = optimize_file(
        tmp_path / "half" / "model.onnx", tmp_path / "b.onnx", dtype="half", role="encoder"
    ).report
    assert (chosen.dtype, chosen.role) == (ir.DataType.FLOAT16, "encoder")


def test_twice_is_the_same_file(source: Path, tmp_path: Path) -> None:
    optimize_file(source, tmp_path / "a.onnx", ep="cpu")
    first = digests(tmp_path)
    optimize_file(source, tmp_path / "a.onnx", ep="cpu", overwrite=True)
    assert digests(tmp_path) == first


def test_what_exists_is_kept_unless_told_otherwise(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    out.write_text("precious")
    with pytest.raises(PackageSaveError, match=r"out\.onnx exists.*--overwrite"):
        optimize_file(source, out)
    assert out.read_text() == "precious"
    optimize_file(source, out, overwrite=True)
    assert verify(source, out).same
    fresh = tmp_path / "fresh.onnx"
    fresh.with_name("fresh.onnx.data").write_text("precious")
    with pytest.raises(PackageSaveError, match=r"fresh\.onnx\.data exists"):
        optimize_file(source, fresh)
    assert not fresh.exists()
    assert fresh.with_name("fresh.onnx.data").read_text() == "precious"


def test_the_input_is_never_replaced(source: Path, tmp_path: Path) -> None:
    before = digests(source.parent)
    (tmp_path / "link.onnx").symlink_to(source)
    os.link(source, tmp_path / "hard.onnx")
    for same in (source, tmp_path / "link.onnx", tmp_path / "hard.onnx"):
        with pytest.raises(PackageSaveError, match="is the input and is not replaced"):
            optimize_file(source, same, overwrite=True)
    assert digests(source.parent) == before


def test_the_inputs_data_are_never_replaced(source: Path) -> None:
    source.rename(source.with_name("other.onnx"))  # its data are in model.onnx.data
    before = digests(source.parent)
    with pytest.raises(PackageSaveError, match="holds the input's data and is not replaced"):
        optimize_file(source.with_name("other.onnx"), source, ep="cpu", overwrite=True)
    assert digests(source.parent) == before


@pytest.mark.parametrize("existing", [False, True])
def test_an_error_while_writing_leaves_everything_as_it_was(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    if existing:
        optimize_file(source, out / "m.onnx", ep="cpu")
    before = digests(tmp_path)

    def fail(*arguments: object) -> None:
        raise OSError("the disk is on fire")

    monkeypatch.setattr(mobius.optimize_file, "to_external_proto", fail)
    with pytest.raises(PackageSaveError, match="the disk is on fire"):
        optimize_file(source, out / "m.onnx", overwrite=True)
    monkeypatch.setattr(mobius.optimize_file, "to_external_proto", to_external_proto)
    # Now everything is written, and the last file cannot be moved into place.
    rename, moved = Path.rename, []

    def rename_or_fail(self: Path, target: Path) -> Path:
        if self.name == "m.onnx" and self.parent != out and Path(target).parent == out:
            moved.append(self)
            if len(moved) == 1:
                raise OSError("no more names")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", rename_or_fail)
    with pytest.raises(PackageSaveError, match="no more names"):
        optimize_file(source, out / "m.onnx", overwrite=True)
    assert moved
    assert digests(tmp_path) == before
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []


def test_wrong_arguments_are_found_before_anything_is_read(tmp_path: Path) -> None:
    missing, out = tmp_path / "none.onnx", tmp_path / "out.onnx"
    with pytest.raises(UnknownEpError, match="Did you mean 'cuda'"):
        optimize_file(missing, out, ep="cud")
    with pytest.raises(ValueError, match="Unknown dtype 'f61'"):
        optimize_file(missing, out, dtype="f61")
    with pytest.raises(ValueError, match="Unknown model role 'decodr'"):
        optimize_file(missing, out, role="decodr")
    with pytest.raises(ValueError, match="Unsupported opset 3"):
        optimize_file(missing, out, opset=3)
    with pytest.raises(ModelFileError, match=r"none\.onnx does not exist"):
        optimize_file(missing, out)
    with pytest.raises(PackageSaveError, match=r"does not exist\. Make it"):
        optimize_file(missing, tmp_path / "no" / "where.onnx")
    with pytest.raises(PackageSaveError, match="is a folder"):
        optimize_file(missing, tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x0a", bytes(range(192, 256))])
def test_files_that_are_no_models(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "in.onnx").write_bytes(content)
    with pytest.raises(ModelFileError, match=r"is not (a readable ONNX file|an ONNX model)"):
        optimize_file(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_what_is_wrong_inside_is_told(tmp_path: Path) -> None:
    """A reader's error says where in the file it was, the one that it goes back to says what."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }"""
    )
    (weight,) = model.graph.initializer
    weight.ClearField("float_data")
    weight.raw_data = b"abc"
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelFileError, match="'w' has 3 bytes, and its shape and dtype need 8"):
        optimize_file(path, out)
    weight.raw_data, weight.data_type = bytes(8), 77
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelFileError, match=r"not a readable ONNX file .*77"):
        optimize_file(path, out)


def test_data_that_are_missing_or_cut_off(source: Path, tmp_path: Path) -> None:
    data = source.with_name("model.onnx.data")
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(ModelFileError, match="is cut off: it has"):
        optimize_file(source, tmp_path / "out.onnx")
    data.unlink()
    with pytest.raises(ModelFileError, match=r"model\.onnx\.data.*cannot be read"):
        optimize_file(source, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_data_outside_of_the_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(8))
    (tmp_path / "in").mkdir()
    value = ir.Value(name="w", shape=ir.Shape([2]), type=ir.TensorType(ir.DataType.FLOAT))
    value.const_value = ir.ExternalTensor(
        "../secret", 0, 8, ir.DataType.FLOAT, shape=ir.Shape([2]), name="w"
    )
    node = ir.node("Neg", [value])
    node.outputs[0].name = "y"
    graph = ir.Graph(
        [], node.outputs, nodes=[node], initializers=[value], opset_imports={"": 24}, name="g"
    )
    onnx.save_model(ir.to_proto(ir.Model(graph, ir_version=10)), tmp_path / "in" / "m.onnx")
    with pytest.raises(ModelFileError, match="leads out of its folder"):
        optimize_file(tmp_path / "in" / "m.onnx", tmp_path / "out.onnx")


def test_hard_and_symbolic_links_to_the_data(source: Path, tmp_path: Path) -> None:
    """Copies made with `cp -l` and the cache of a hub are links (C111)."""
    for make in (os.link, os.symlink):
        folder = tmp_path / make.__name__
        folder.mkdir()
        for path in (source, source.with_name("model.onnx.data")):
            make(path, folder / path.name)
        optimize_file(folder / "model.onnx", tmp_path / f"{make.__name__}.onnx", ep="cpu")
        assert verify(source, tmp_path / f"{make.__name__}.onnx").same


def test_a_graph_that_the_target_forbids(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 24, "my.domain" : 1]>
    g (float[2] x) => (float[2] y) { y = my.domain.Mystery(x) }"""
    ir.save(ir.from_onnx_text(text), tmp_path / "in.onnx")
    with pytest.raises(InvariantError, match="Mystery"):
        optimize_file(tmp_path / "in.onnx", tmp_path / "out.onnx", ep="onnx-standard")
    assert not (tmp_path / "out.onnx").exists()


def test_progress_counts_the_bytes_that_are_written(source: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int, str]] = []
    result = optimize_file(source, tmp_path / "out.onnx", progress=lambda *call: calls.append(call))
    assert calls
    done, total, _ = calls[-1]
    assert result.data is not None
    assert done == total <= result.data.stat().st_size
