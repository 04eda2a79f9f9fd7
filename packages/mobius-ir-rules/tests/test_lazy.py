"""Lazy weight expressions: exact values in each dtype, bytes as ONNX stores them, little memory."""

from __future__ import annotations

import concurrent.futures
import io
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from mobius_ir_rules.expressions import (
    Cast,
    Concat,
    Expression,
    Leaf,
    Reshape,
    Slice,
    Transpose,
    can_cast,
)
from mobius_ir_rules.lazy import (
    DerivedTensor,
    UnloadedWeightError,
    expression_of,
    is_small_materialized,
    weight_values,
)

DTYPES = [
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
    ir.DataType.FLOAT8E4M3FN,
    ir.DataType.FLOAT8E5M2,
    ir.DataType.INT4,
    ir.DataType.UINT4,
    ir.DataType.INT8,
    ir.DataType.INT64,
    ir.DataType.BOOL,
]


def _values(dtype: ir.DataType, *shape: int) -> np.ndarray:
    random = np.random.default_rng(0)
    numbers = random.integers(-7, 8, shape) if dtype.is_signed() else random.integers(0, 2, shape)
    return numbers.astype(dtype.numpy())


def _leaf(array: np.ndarray, name: str = "w", dtype: ir.DataType | None = None) -> Leaf:
    tensor = ir.Tensor(array, dtype=dtype or ir.DataType.from_numpy(array.dtype), name=name)
    return Leaf(_declared(name, tensor.dtype, *array.shape, tensor=tensor))


def _declared(
    name: str, dtype: ir.DataType, *shape: int, tensor: ir.TensorProtocol | None = None
) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape), const_value=tensor)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_moves_are_exact_in_every_dtype_c017_c059(dtype: ir.DataType, tmp_path: Path) -> None:
    a, b = _values(dtype, 6, 4), _values(dtype, 2, 4)
    packed = Concat((Transpose(_leaf(a), (1, 0)), Transpose(_leaf(b), (1, 0))), 1)
    expected = np.concatenate([a.T, b.T], axis=1)
    tensor = DerivedTensor(packed, "packed")
    assert tensor.dtype == dtype
    assert tensor.shape == [4, 8]
    assert (tensor.size, tensor.nbytes) == (32, 16 if dtype.bitwidth == 4 else 32 * a.itemsize)
    result = tensor.numpy()
    assert result.dtype == dtype.numpy()
    assert result.tobytes() == expected.tobytes()
    reference = ir.Tensor(np.ascontiguousarray(expected), dtype=dtype).tobytes()
    assert tensor.tobytes() == reference
    with open(tmp_path / "data", "wb") as file:
        tensor.tofile(file)
    assert (tmp_path / "data").read_bytes() == reference
    memory = io.BytesIO()
    tensor.tofile(memory)
    assert memory.getvalue() == reference


W = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

EXPRESSIONS = [
    (Transpose(_leaf(W), (2, 0, 1)), W.transpose(2, 0, 1)),
    (Transpose(Transpose(_leaf(W), (2, 0, 1)), (1, 2, 0)), W),
    (Reshape(_leaf(W), (6, 4)), W.reshape(6, 4)),
    (Reshape(Transpose(_leaf(W), (2, 1, 0)), (4, 6)), W.T.reshape(4, 6)),
    (Transpose(Reshape(_leaf(W), (6, 4)), (1, 0)), W.reshape(6, 4).T),
    (Slice(_leaf(W), (slice(None), slice(2, 0, -1), slice(1, 2**63 - 1))), W[:, 2:0:-1, 1:]),
    (Slice(Concat((_leaf(W), _leaf(W)), 2), (slice(1), slice(3), slice(2, 6))),
     np.concatenate([W, W], 2)[:1, :, 2:6]),
    (Transpose(Concat((_leaf(W), _leaf(W)), 0), (1, 2, 0)),
     np.concatenate([W, W]).transpose(1, 2, 0)),
    (Concat((Reshape(Transpose(_leaf(W), (2, 1, 0)), (4, 6)), Reshape(_leaf(W), (4, 6))), 1),
     np.concatenate([W.T.reshape(4, 6), W.reshape(4, 6)], 1)),
    (Reshape(_leaf(np.array(3.0, np.float32)), (1, 1)), np.array([[3.0]], np.float32)),
    (Cast(Transpose(_leaf(W), (2, 1, 0)), ir.DataType.FLOAT16), W.T.astype(np.float16)),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "expected"), EXPRESSIONS)
def test_expressions(expression: Expression, expected: np.ndarray) -> None:
    tensor = DerivedTensor(expression)
    assert tuple(tensor.shape) == expected.shape
    np.testing.assert_array_equal(tensor.numpy(), expected, strict=True)
    assert tensor.numpy().flags.c_contiguous
    np.testing.assert_array_equal(np.asarray(tensor), expected, strict=True)
    np.testing.assert_array_equal(expression.array(), expected, strict=True)


def test_scalar() -> None:
    tensor = DerivedTensor(_leaf(np.array(3.0, np.float32)))
    assert tensor.numpy().shape == ()
    assert tensor.numpy() == 3.0


@pytest.mark.parametrize("shape", [(5000, 40), (40, 5000), (1, 3000), (3000, 1), (0, 7)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8])
def test_tiled_transposes(shape: tuple[int, int], dtype: Any) -> None:
    array = np.random.default_rng(0).integers(-90, 90, shape).astype(dtype)
    np.testing.assert_array_equal(
        DerivedTensor(Transpose(_leaf(array), (1, 0))).numpy(), array.T, strict=True
    )


def test_tiled_transposes_of_stacked_experts() -> None:
    array = np.random.default_rng(0).normal(size=(3, 1100, 50)).astype(np.float32)
    tensor = DerivedTensor(Transpose(_leaf(array), (0, 2, 1)))
    np.testing.assert_array_equal(tensor.numpy(), array.transpose(0, 2, 1), strict=True)


def test_casts_round_to_nearest_even_once_each_c059() -> None:
    # 1 + 2^-8 is halfway between two bfloat16 numbers; 1e6 is no float16.
    array = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1e6, np.nan, -0.0], np.float32)
    bf16 = DerivedTensor(Cast(_leaf(array), ir.DataType.BFLOAT16)).numpy()
    assert bf16.dtype == ml_dtypes.bfloat16
    assert bf16.view(np.uint16).tolist()[:2] == [0x3F80, 0x3F82]
    assert np.isnan(bf16[3])
    assert np.signbit(bf16[4])
    half = DerivedTensor(Cast(_leaf(array), ir.DataType.FLOAT16)).numpy()
    assert half[2] == np.inf
    # A cast back does not undo the rounding of the first one, wherever it is evaluated.
    there = Cast(_leaf(array), ir.DataType.BFLOAT16)
    back = DerivedTensor(Concat((Cast(there, ir.DataType.FLOAT),), 0)).numpy()
    np.testing.assert_array_equal(back, bf16.astype(np.float32), strict=True)
    with pytest.raises(ValueError, match="No exact cast"):
        Cast(_leaf(array), ir.DataType.FLOAT8E4M3FN)
    assert not can_cast(ir.DataType.FLOAT, ir.DataType.INT4)
    assert can_cast(ir.DataType.FLOAT8E4M3FN, ir.DataType.BFLOAT16)


def test_unloaded_leaf_is_named() -> None:
    q, k = _declared("layer.q", ir.DataType.FLOAT, 2), _declared("layer.k", ir.DataType.FLOAT, 2)
    tensor = DerivedTensor(Concat((Leaf(q), Leaf(k), Leaf(q)), 0), "layer.qk")
    assert tensor.leaves == (q, k)
    assert not tensor.is_ready()
    q.const_value = ir.tensor(np.float32([1, 2]))
    assert not tensor.is_ready()
    for read in (tensor.numpy, tensor.tobytes, lambda: tensor.tofile(io.BytesIO())):
        with pytest.raises(UnloadedWeightError, match=r"'layer\.k' has no data"):
            read()
    assert "layer.q" in repr(tensor)
    k.const_value = ir.tensor(np.float32([3, 4]))
    assert tensor.is_ready()
    assert tensor.numpy().tolist() == [1, 2, 3, 4, 1, 2]


def test_leaf_with_other_data_than_declared() -> None:
    value = _declared("w", ir.DataType.FLOAT16, 2)
    tensor = DerivedTensor(Leaf(value))
    value.const_value = ir.tensor(np.float32([1, 2]))
    with pytest.raises(ValueError, match=r"'w' is FLOAT16\[2\], but its data are FLOAT\[2\]"):
        tensor.numpy()
    with pytest.raises(ValueError, match="needs a dtype and a static shape"):
        Leaf(ir.Value(name="w", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n"])))


def test_data_are_not_cached_and_leaves_are_read_once_each() -> None:
    reads = []

    def load() -> ir.TensorProtocol:
        reads.append(1)
        return ir.tensor(np.float32([[1, 2]]))

    value = _declared("w", ir.DataType.FLOAT, 1, 2)
    value.const_value = ir.LazyTensor(load, ir.DataType.FLOAT, ir.Shape([1, 2]))
    tensor = DerivedTensor(Transpose(Leaf(value), (1, 0)))
    assert not reads
    tensor.numpy()
    tensor.numpy()
    assert len(reads) == 2


def test_peak_memory_is_the_result_and_one_leaf_c110() -> None:
    """C110: 8 leaves of 4 MB, loaded lazily, packed into 32 MB."""
    size, rows = 1024, 1024

    def leaf(index: int) -> Leaf:
        def load() -> ir.TensorProtocol:
            return ir.tensor(np.full((rows, size), index, np.float32))

        value = _declared(f"w{index}", ir.DataType.FLOAT, rows, size)
        value.const_value = ir.LazyTensor(load, ir.DataType.FLOAT, ir.Shape([rows, size]))
        return Leaf(value)

    tensor = DerivedTensor(Concat(tuple(Transpose(leaf(i), (1, 0)) for i in range(8)), 1))
    tracemalloc.start()
    result = tensor.numpy()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result[0, ::rows].tolist() == list(range(8))
    assert peak < tensor.nbytes + 1.1 * 4 * size * rows


def test_saves_as_external_data_and_in_threads(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    x = ir.val("x", ir.DataType.FLOAT, (1, 32))
    weights = []
    for index in range(6):
        name = f"w{index}"
        derived = DerivedTensor(Transpose(_leaf(array + index), (1, 0)), name)
        weights.append(_declared(name, ir.DataType.FLOAT, 32, 64, tensor=derived))
    nodes = [ir.node("MatMul", [x, weight]) for weight in weights]
    graph = ir.Graph(
        [x],
        [node.outputs[0] for node in nodes],
        nodes=nodes,
        initializers=weights,
        opset_imports={"": 24},
        name="g",
    )
    for index, output in enumerate(graph.outputs):
        output.name = f"y{index}"
        output.dtype, output.shape = ir.DataType.FLOAT, ir.Shape([1, 64])
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "m.onnx", external_data="m.data")
    loaded = ir.load(tmp_path / "m.onnx")
    for index in range(6):
        tensor = loaded.graph.initializers[f"w{index}"].const_value
        assert tensor is not None
        np.testing.assert_array_equal(tensor.numpy(), (array + index).T)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        first = weights[0].const_value
        assert isinstance(first, DerivedTensor)
        assert len(set(pool.map(lambda _: first.tobytes(), range(8)))) == 1


def test_expression_of_and_weight_values() -> None:
    q = _declared("q", ir.DataType.FLOAT, 2, 3)
    derived = DerivedTensor(Transpose(Leaf(q), (1, 0)), "q")
    folded = _declared("q", ir.DataType.FLOAT, 3, 2, tensor=derived)
    again = expression_of(folded)
    assert again is derived.expression
    plain = _declared("v", ir.DataType.FLOAT, 1)
    unknown = ir.Value(name="u")
    assert expression_of(unknown) is None
    graph = ir.Graph([], [], nodes=[], initializers=[folded, plain], name="g")
    assert weight_values(ir.Model(graph, ir_version=10)) == {"q": q, "v": plain}


def test_is_small_materialized_reads_nothing(tmp_path: Path) -> None:
    array = np.zeros(4, np.float32)

    def fail() -> ir.TensorProtocol:
        raise AssertionError("read")

    lazy = ir.LazyTensor(fail, ir.DataType.FLOAT, ir.Shape([1]))
    external = ir.ExternalTensor(
        "missing", 0, 4, ir.DataType.FLOAT, shape=ir.Shape([1]), name="e", base_dir=str(tmp_path)
    )
    derived = DerivedTensor(Leaf(_declared("w", ir.DataType.FLOAT, 1)))
    assert is_small_materialized(ir.tensor(array), 16)
    assert not is_small_materialized(ir.tensor(array), 15)
    assert is_small_materialized(ir.StringTensor(np.array([b"abc"])), 3)
    assert not is_small_materialized(ir.StringTensor(np.array([b"abc"])), 2)
    for tensor in (lazy, external, derived, None):
        assert not is_small_materialized(tensor, 10**9)
