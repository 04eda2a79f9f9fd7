"""Layout, bytes and proto of external data."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from mobius.errors import PackageSaveError
from mobius.external_data import plan_layout, to_external_proto, write_data
from mobius.weights import collect_parameters

ModelOf = Callable[..., ir.Model]

LOCATION = "model.onnx.data"

BIG = """<ir_version: 10, opset_import: ["" : 24]>
g (float[2, 512] x, float[512] small, float[512, 512] first, float[512] middle,
   float[512, 512] second) => (float[2, 512] y) {
  a = Add(x, small)
  b = MatMul(a, first)
  c = Add(b, middle)
  y = MatMul(c, second)
}"""


def weights_of(model: ir.Model) -> frozenset[ir.Value]:
    """Return the parameters of a model that has no data yet."""
    return frozenset(v for values in collect_parameters([model]).values() for v in values)


def fill(model: ir.Model) -> None:
    """Give every parameter random data."""
    generator = np.random.default_rng(0)
    for value in weights_of(model):
        assert value.shape is not None
        assert value.dtype is not None
        array = generator.standard_normal(value.shape.numpy()).astype(value.dtype.numpy())
        value.const_value = ir.tensor(array, name="a name of its own")


def test_c087_large_tensors_start_at_a_page_and_small_ones_at_64_bytes(model_of: ModelOf) -> None:
    model = model_of(BIG)
    layout = plan_layout(model, LOCATION, weights_of(model))
    offsets = {entry.name: entry.offset for entry in layout.entries}
    assert offsets == {
        "small": 0,
        "first": 4096,
        "middle": 4096 + 2**20,
        "second": 2 * 4096 + 2**20,
    }
    assert layout.size == 2 * 4096 + 2 * 2**20


def test_layout_is_the_same_with_and_without_data(model_of: ModelOf) -> None:
    model = model_of(BIG)
    weights = weights_of(model)
    before = plan_layout(model, LOCATION, weights)
    fill(model)
    after = plan_layout(model, LOCATION, weights)
    places = [(entry.name, entry.offset, entry.length) for entry in before.entries]
    assert places == [(entry.name, entry.offset, entry.length) for entry in after.entries]


def test_small_constants_are_embedded_and_large_ones_are_not(model_of: ModelOf) -> None:
    text = """<ir_version: 10, opset_import: ["" : 24]>
    g (float[256] x, float[255] below, float[256] at, float one) => (float[256] y) {
      a = Add(x, at)
      y = Mul(a, one)
    }"""
    constants = {
        "below": np.ones(255, np.float32),
        "at": np.ones(256, np.float32),
        "one": np.float32(1),
    }
    model = model_of(text, constants)
    layout = plan_layout(model, LOCATION, frozenset())
    assert [entry.name for entry in layout.entries] == ["at"]
    proto = to_external_proto(model, layout)
    assert {
        tensor.name: onnx.external_data_helper.uses_external_data(tensor)
        for tensor in proto.graph.initializer
    } == {"below": False, "at": True, "one": False}


def test_c055_a_shared_tensor_is_written_once(model_of: ModelOf) -> None:
    text = """<ir_version: 10, opset_import: ["" : 24]>
    g (float[2, 8] x, float[8, 8] a, float[8, 8] b, float[8, 8] c) => (float[2, 8] y) {
      p = MatMul(x, a)
      q = MatMul(p, b)
      y = MatMul(q, c)
    }"""
    model = model_of(text)
    weights = weights_of(model)
    shared = ir.tensor(np.arange(64, dtype=np.float32).reshape(8, 8))
    alone = ir.tensor(np.ones((8, 8), np.float32))
    for name, tensor in {"a": shared, "b": alone, "c": shared}.items():
        model.graph.initializers[name].const_value = tensor
    layout = plan_layout(model, LOCATION, weights)
    assert [(entry.name, entry.offset) for entry in layout.entries] == [("a", 0), ("b", 256)]
    assert layout.size == 512
    proto = to_external_proto(model, layout)
    offsets = {
        tensor.name: next(item.value for item in tensor.external_data if item.key == "offset")
        for tensor in proto.graph.initializer
    }
    assert offsets == {"a": "0", "b": "256", "c": "0"}


def test_bytes_lie_where_the_proto_says(model_of: ModelOf, tmp_path: Path) -> None:
    model = model_of(BIG)
    weights = weights_of(model)
    fill(model)
    layout = plan_layout(model, LOCATION, weights)
    write_data(layout, tmp_path / LOCATION)
    onnx.save(to_external_proto(model, layout), tmp_path / "model.onnx")
    assert (tmp_path / LOCATION).stat().st_size == layout.size
    read = onnx.load(tmp_path / "model.onnx")
    for tensor in read.graph.initializer:
        expected = model.graph.initializers[tensor.name].const_value
        assert expected is not None
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), expected.numpy())


def test_the_model_and_its_tensors_are_not_changed(model_of: ModelOf) -> None:
    model = model_of(BIG)
    weights = weights_of(model)
    fill(model)
    model.ir_version = 13
    before = {name: value.const_value for name, value in model.graph.initializers.items()}
    proto = to_external_proto(model, plan_layout(model, LOCATION, weights))
    assert proto.ir_version == 10  # C107
    assert model.ir_version == 13
    for name, value in model.graph.initializers.items():
        assert value.const_value is before[name]
        assert value.const_value is not None
        assert value.const_value.name == "a name of its own"


@pytest.mark.parametrize(
    "dtype",
    [
        ir.DataType.FLOAT16,
        ir.DataType.BFLOAT16,
        ir.DataType.INT4,
        ir.DataType.FLOAT8E4M3FN,
        ir.DataType.BOOL,
        ir.DataType.INT64,
    ],
)
def test_every_dtype_is_written_as_onnx_stores_it(dtype: ir.DataType, tmp_path: Path) -> None:
    array = (np.arange(1501) % 2).astype(dtype.numpy())
    tensor = ir.Tensor(array, dtype=dtype)
    value = ir.Value(name="w", shape=ir.Shape([1501]), type=ir.TensorType(dtype))
    graph = ir.Graph([], [], nodes=[], initializers=[value], opset_imports={"": 24})
    value.const_value = tensor
    layout = plan_layout(ir.Model(graph, ir_version=10), LOCATION, frozenset({value}))
    write_data(layout, tmp_path / LOCATION)
    assert (tmp_path / LOCATION).read_bytes() == tensor.tobytes()


def test_a_tensor_that_is_not_contiguous_is_written_in_row_major_order(tmp_path: Path) -> None:
    array = np.arange(3000, dtype=np.float32).reshape(50, 60).T
    value = ir.Value(name="w", shape=ir.Shape([60, 50]), type=ir.TensorType(ir.DataType.FLOAT))
    graph = ir.Graph([], [], nodes=[], initializers=[value], opset_imports={"": 24})
    value.const_value = ir.tensor(array)
    layout = plan_layout(ir.Model(graph, ir_version=10), LOCATION, frozenset({value}))
    write_data(layout, tmp_path / LOCATION)
    written = np.fromfile(tmp_path / LOCATION, np.float32).reshape(60, 50)
    np.testing.assert_array_equal(written, array)


def test_initializers_of_subgraphs_go_out_too() -> None:
    condition = ir.Value(name="c", shape=ir.Shape([]), type=ir.TensorType(ir.DataType.BOOL))
    branches = {}
    for name in ("then", "else"):
        value = ir.Value(name=name, shape=ir.Shape([400]), type=ir.TensorType(ir.DataType.FLOAT))
        value.const_value = ir.tensor(np.ones(400, np.float32))
        node = ir.node("Identity", [value])
        branches[f"{name}_branch"] = ir.Graph(
            [], node.outputs, nodes=[node], initializers=[value], name=name
        )
    choice = ir.node("If", [condition], attributes=branches)
    graph = ir.Graph([condition], choice.outputs, nodes=[choice], opset_imports={"": 24}, name="g")
    model = ir.Model(graph, ir_version=10)
    layout = plan_layout(model, LOCATION, frozenset())
    assert [entry.name for entry in layout.entries] == ["then", "else"]
    proto = to_external_proto(model, layout)
    for attribute in proto.graph.node[0].attribute:
        assert onnx.external_data_helper.uses_external_data(attribute.g.initializer[0])


def test_a_parameter_without_a_static_shape_is_refused() -> None:
    value = ir.Value(name="w", shape=ir.Shape(["n"]), type=ir.TensorType(ir.DataType.FLOAT))
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 24})
    graph.initializers["w"] = value
    with pytest.raises(PackageSaveError, match="'w' has no data and its shape is"):
        plan_layout(ir.Model(graph, ir_version=10), LOCATION, frozenset({value}))


@pytest.mark.parametrize("elements", [3, 5])
def test_a_tensor_with_other_bytes_than_it_announces_is_refused(
    elements: int, tmp_path: Path
) -> None:
    value = ir.Value(name="w", shape=ir.Shape([4]), type=ir.TensorType(ir.DataType.FLOAT))
    graph = ir.Graph([], [], nodes=[], initializers=[value], opset_imports={"": 24})
    value.const_value = ir.LazyTensor(
        lambda: ir.tensor(np.ones(elements, np.float32)), ir.DataType.FLOAT, ir.Shape([4])
    )
    layout = plan_layout(ir.Model(graph, ir_version=10), LOCATION, frozenset({value}))
    with pytest.raises(PackageSaveError, match=rf"'w' gave {4 * elements} bytes .* need 16"):
        write_data(layout, tmp_path / LOCATION)


def test_what_one_thread_raises_stops_the_other(tmp_path: Path) -> None:
    """The first error in file order is raised, and no thread is left writing."""
    read: list[int] = []

    def tensor(index: int) -> ir.TensorProtocol:
        read.append(index)
        if index == 1:
            raise KeyError("no such weight")
        if index > 1:
            time.sleep(0.01)
        return ir.tensor(np.full(400, index, np.float32))

    values = []
    for index in range(50):
        value = ir.Value(
            name=f"w{index}", shape=ir.Shape([400]), type=ir.TensorType(ir.DataType.FLOAT)
        )
        value.const_value = ir.LazyTensor(
            functools.partial(tensor, index), ir.DataType.FLOAT, ir.Shape([400])
        )
        values.append(value)
    graph = ir.Graph([], [], nodes=[], initializers=values, opset_imports={"": 24})
    layout = plan_layout(ir.Model(graph, ir_version=10), LOCATION, frozenset())
    threads = threading.active_count()
    with pytest.raises(KeyError, match="no such weight"):
        write_data(layout, tmp_path / LOCATION)
    assert threading.active_count() == threads
    assert len(read) < 50
