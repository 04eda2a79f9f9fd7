"""Strict binding, lazy casts, and weights that are not finite."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from mobius.errors import NonFiniteTensor, NonFiniteWeightsError, WeightsError
from mobius.finite import count_non_finite
from mobius.package import ModelPackage
from mobius.streaming import WeightTensor, visit_chunks
from mobius.weights import bind_weights, collect_parameters
from mobius_ir_rules.lazy import Concat, DerivedTensor, Leaf, Transpose

MakePackage = Callable[..., ModelPackage]
TensorsFor = Callable[..., dict[str, ir.TensorProtocol]]
ModelOf = Callable[..., ir.Model]


class Unread(ir.LazyTensor):
    """A tensor that must not be read."""

    def __init__(self, shape: tuple[int, ...], dtype: ir.DataType = ir.DataType.FLOAT) -> None:
        super().__init__(self._read, dtype=dtype, shape=ir.Shape(shape))

    def _read(self) -> ir.TensorProtocol:
        raise AssertionError("read while binding")


def test_binding_reads_nothing(make_package: MakePackage) -> None:
    package = make_package(dtype="float16", weights=False)
    assert not package.is_loaded
    package.apply_weights(
        {
            "layer_weight": Unread((16, 8)),
            "layer_bias": Unread((8,)),
            "head_weight": Unread((8, 32)),
        }
    )
    assert package.is_loaded


def test_everything_that_does_not_fit_is_listed_at_once(make_package: MakePackage) -> None:
    package = make_package(weights=False)
    tensors = {
        "layer_weigth": Unread((16, 8)),
        "layer_bias": Unread((9,)),
        "head_weight": Unread((8, 32), ir.DataType.INT64),
        "lm_head": Unread((1,)),
    }
    with pytest.raises(WeightsError) as caught:
        package.apply_weights(tensors)
    assert str(caught.value) == (
        "The tensors do not fit the model: 1 missing, 2 left over, 2 mismatched. "
        "Nothing was loaded.\n"
        "  missing: layer_weight (nearest: layer_weigth)\n"
        "  left over: layer_weigth (nearest: layer_weight)\n"
        "  left over: lm_head\n"
        "  mismatched: layer_bias: shape [9], needs [8]\n"
        "  mismatched: head_weight: dtype INT64, needs FLOAT"
    )
    assert caught.value.missing == ("layer_weight",)
    assert caught.value.left_over == ("layer_weigth", "lm_head")
    assert caught.value.mismatched == ("layer_bias", "head_weight")
    assert isinstance(caught.value, ValueError)
    assert all(
        value.const_value is None for values in package.parameters().values() for value in values
    )


def test_long_lists_are_cut(make_package: MakePackage) -> None:
    tensors = {f"extra.{index}": Unread((1,)) for index in range(50)}
    with pytest.raises(WeightsError, match="left over: and 30 more") as caught:
        make_package(weights=False).apply_weights(tensors)
    assert len(caught.value.left_over) == 50


@pytest.mark.parametrize("target", [ir.DataType.FLOAT16, ir.DataType.BFLOAT16])
def test_a_cast_rounds_to_nearest_and_is_not_kept(target: ir.DataType) -> None:
    source = np.random.default_rng(0).standard_normal(1000, dtype=np.float32)
    cast = WeightTensor(ir.tensor(source), target)
    first, second = cast.numpy(), cast.numpy()
    assert cast.dtype is target
    assert first is not second
    np.testing.assert_array_equal(first, source.astype(target.numpy()))
    assert cast.tobytes() == source.astype(target.numpy()).tobytes()


def on_disk(path: Path, array: np.ndarray, dtype: ir.DataType) -> ir.ExternalTensor:
    """Write `array` to a file and return it as a tensor in that file."""
    path.write_bytes(array.tobytes())
    shape = ir.Shape(array.shape)
    return ir.ExternalTensor(
        path.name, 0, array.nbytes, dtype, shape=shape, name="w", base_dir=path.parent
    )


@pytest.mark.parametrize("target", [ir.DataType.FLOAT, ir.DataType.FLOAT16])
def test_a_tensor_in_a_file_is_read_and_not_mapped(tmp_path: Path, target: ir.DataType) -> None:
    # Mapped pages count as memory of the process, and a file that shrinks would crash it.
    array = np.random.default_rng(0).standard_normal((1500, 1001), dtype=np.float32)
    source = on_disk(tmp_path / "data", array, ir.DataType.FLOAT)
    value = ir.Value(name="w", shape=ir.Shape(array.shape), type=ir.TensorType(target))
    bind_weights({"w": (value,)}, {"w": source})
    assert value.const_value is not None
    np.testing.assert_array_equal(value.const_value.numpy(), array.astype(target.numpy()))
    chunks: list[np.ndarray] = []
    visit_chunks(value.const_value, lambda chunk: chunks.append(chunk.copy()))
    assert len(chunks) > 1
    np.testing.assert_array_equal(np.concatenate(chunks), array.astype(target.numpy()).ravel())
    assert source.raw is None


def test_a_file_that_has_been_cut_off_is_an_error(tmp_path: Path) -> None:
    source = on_disk(tmp_path / "data", np.ones(1000, np.float32), ir.DataType.FLOAT)
    os.truncate(tmp_path / "data", 100)
    with pytest.raises(OSError, match="shorter than expected"):
        WeightTensor(source, ir.DataType.FLOAT).numpy()


class Dribble(ir.ExternalTensor):
    """A tensor whose bytes come in pieces that do not end where elements do."""

    def tofile(self, file: Any) -> None:
        data = Path(self.path).read_bytes()
        for start in range(0, len(data), 7):
            file.write(data[start : start + 7])


def test_pieces_need_not_end_where_elements_do(tmp_path: Path) -> None:
    array = np.arange(100, dtype=np.float32)
    (tmp_path / "data").write_bytes(array.tobytes())
    source = Dribble(
        "data", 0, 400, ir.DataType.FLOAT, shape=ir.Shape([100]), name="w", base_dir=tmp_path
    )
    np.testing.assert_array_equal(WeightTensor(source, ir.DataType.FLOAT).numpy(), array)


def test_a_tensor_of_the_right_dtype_is_bound_as_it_is(make_package: MakePackage) -> None:
    package = make_package(weights=False)
    tensors = {
        name: ir.tensor(np.zeros([int(d) for d in values[0].shape or ()], np.float32))
        for name, values in package.parameters().items()
    }
    package.apply_weights(tensors)
    for name, tensor in tensors.items():
        assert package["model"].graph.initializers[name].const_value is tensor


def test_parameters_that_share_a_tensor_share_its_cast(model_of: ModelOf) -> None:
    text = """<ir_version: 10, opset_import: ["" : 24]>
    g (float16[2, 8] x, float16[8, 8] a, float16[8, 8] b) => (float16[2, 8] y) {
      p = MatMul(x, a)
      y = MatMul(p, b)
    }"""
    model = model_of(text)
    shared = ir.tensor(np.ones((8, 8), np.float32))
    bind_weights(collect_parameters([model]), {"a": shared, "b": shared})
    initializers = model.graph.initializers
    assert isinstance(initializers["a"].const_value, WeightTensor)
    assert initializers["a"].const_value is initializers["b"].const_value


def test_c114_tensors_follow_the_value_when_names_are_swapped(make_package: MakePackage) -> None:
    package = make_package(weights=False)
    initializers = package["model"].graph.initializers
    weight, head = initializers["layer_weight"], initializers["head_weight"]
    weight.name, head.name = "temporary", "layer_weight"
    weight.name = "head_weight"
    package.apply_weights(
        {
            "layer_weight": Unread((16, 8)),
            "layer_bias": Unread((8,)),
            "head_weight": Unread((8, 32)),
        }
    )
    assert weight.const_value is not None
    assert tuple(weight.const_value.shape.numpy()) == (16, 8)


def test_an_unloaded_leaf_of_a_derived_tensor_is_a_parameter(model_of: ModelOf) -> None:
    text = """<ir_version: 10, opset_import: ["" : 24]>
    g (float[2, 8] x, float[8, 8] packed) => (float[2, 8] y) { y = MatMul(x, packed) }"""
    model = model_of(text)
    original = ir.Value(name="w", shape=ir.Shape([8, 8]), type=ir.TensorType(ir.DataType.FLOAT))
    model.graph.initializers["packed"].const_value = DerivedTensor(
        Transpose(Leaf(original), (1, 0))
    )
    package = ModelPackage({"model": model}, roles={"model": "decoder"})
    assert list(package.parameters()) == ["w"]
    assert not package.is_loaded
    package.apply_weights({"w": ir.tensor(np.ones((8, 8), np.float32))})
    assert package.is_loaded


def test_the_same_name_in_two_models_takes_one_tensor(
    make_package: MakePackage, tiny_model: Callable[..., ir.Model], tensors_for: TensorsFor
) -> None:
    package = ModelPackage(
        {"decoder": tiny_model(), "encoder": tiny_model("float16")},
        roles={"decoder": "decoder", "encoder": "encoder"},
    )
    assert {name: len(values) for name, values in package.parameters().items()} == {
        "layer_weight": 2,
        "layer_bias": 2,
        "head_weight": 2,
    }
    package.apply_weights(tensors_for(package))
    for model, dtype in (("decoder", ir.DataType.FLOAT), ("encoder", ir.DataType.FLOAT16)):
        tensor = package[model].graph.initializers["layer_bias"].const_value
        assert tensor is not None
        assert tensor.dtype is dtype


BAD = np.array([1e6, -1e6, np.nan, np.inf, 1, 2, 3, 4], np.float32)


def test_overflow_and_nan_are_named_and_nothing_is_written(
    make_package: MakePackage, tensors_for: TensorsFor, tmp_path: Path
) -> None:
    package = make_package(dtype="float16", weights=False)
    package.apply_weights({**tensors_for(package), "layer_bias": ir.tensor(BAD)})
    with pytest.raises(NonFiniteWeightsError) as caught:
        package.save(tmp_path / "out")
    assert caught.value.tensors == (NonFiniteTensor("layer_bias", 2, 2),)
    assert "layer_bias: 2 NaN or infinite, 2 beyond the dtype" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_not_finite_weights_are_written_when_allowed(
    make_package: MakePackage, tensors_for: TensorsFor, tmp_path: Path, caplog: Any
) -> None:
    package = make_package(weights=False)
    tensors = {**tensors_for(package), "layer_bias": ir.tensor(BAD)}
    package.apply_weights(tensors, allow_non_finite=True)
    package.save(tmp_path / "out")
    loaded = ModelPackage.load(tmp_path / "out")["model"].graph.initializers["layer_bias"]
    assert loaded.const_value is not None
    np.testing.assert_array_equal(loaded.const_value.numpy(), BAD)
    assert "layer_bias: 2 NaN or infinite" in caplog.text


def test_bad_values_of_a_derived_tensor_are_those_of_the_checkpoint_tensor(
    model_of: ModelOf, tmp_path: Path
) -> None:
    text = """<ir_version: 10, opset_import: ["" : 24]>
    g (float16[2, 8] x, float16[8, 8] a, float16[8, 8] b) => (float16[2, 16] y) {
      packed = Concat <axis: int = 1> (a, b)
      y = MatMul(x, packed)
    }"""
    package = ModelPackage({"model": model_of(text)}, roles={"model": "decoder"})
    graph = package["model"].graph
    originals = [graph.initializers.pop(name) for name in ("a", "b")]
    concat, matmul = graph
    derived = DerivedTensor(Concat((Leaf(originals[0]), Leaf(originals[1])), 1))
    value = ir.Value(
        name="packed_", shape=derived.shape, type=ir.TensorType(derived.dtype), const_value=derived
    )
    graph.initializers["packed_"] = value
    matmul.replace_input_with(1, value)
    graph.remove(concat, safe=True)
    good, bad = np.ones((8, 8), np.float32), np.full((8, 8), 7e4, np.float32)
    package.apply_weights({"a": ir.tensor(good), "b": ir.tensor(bad)})
    with pytest.raises(NonFiniteWeightsError) as caught:
        package.save(tmp_path / "out")
    assert caught.value.tensors == (NonFiniteTensor("b", 0, 64),)


def test_constants_may_be_infinite(model_of: ModelOf, tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 24]>
    g (float[512] x, float[512] mask) => (float[512] y) { y = Add(x, mask) }"""
    model = model_of(text, {"mask": np.full(512, -np.inf, np.float32)})
    ModelPackage({"model": model}, roles={"model": "decoder"}).save(tmp_path / "out")
    assert (tmp_path / "out" / "model.onnx.data").stat().st_size == 2048


@pytest.mark.parametrize(
    "dtype",
    [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2],
)
def test_count_non_finite_counts_across_chunks(dtype: type[np.generic]) -> None:
    array = np.ones((3, 1 << 20), dtype)
    assert count_non_finite(array) == 0
    array[0, 0], array[1, 5], array[2, -1] = np.nan, np.inf, -np.inf
    assert count_non_finite(array) == 3
    assert count_non_finite(array.T) == 3


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, ml_dtypes.int4, np.uint8])
def test_integers_are_always_finite(dtype: type[np.generic]) -> None:
    assert count_non_finite(np.ones(5, dtype)) == 0


def test_the_largest_finite_values_are_finite() -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32):
        info = ml_dtypes.finfo(dtype)
        assert count_non_finite(np.array([info.max, info.min, info.tiny, 0], dtype)) == 0
