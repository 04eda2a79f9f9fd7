"""`DeduplicateInitializers`: equal bytes are merged; weights are not read."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from mobius_ir_rules.expressions import Leaf
from mobius_ir_rules.lazy import DerivedTensor
from mobius_ir_rules.passes import DeduplicateInitializers


def _add(model: ir.Model, name: str, tensor: ir.TensorProtocol | None) -> ir.Value:
    dtype = ir.DataType.FLOAT if tensor is None else tensor.dtype
    value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([2]), const_value=tensor)
    model.graph.initializers.add(value)
    model.graph.append(ir.node("Identity", [value]))
    return value


def _model() -> ir.Model:
    return ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 24]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    )


def test_equal_bytes_of_one_dtype_and_shape(apply: Any) -> None:
    model = _model()
    nan, zero = np.float32([np.nan, 0]), np.float32([1, 0])
    tensors = {
        "nan": nan, "nan2": nan.copy(), "plus": zero, "minus": np.float32([1, -0.0]),
        "double": zero.astype(np.float64), "bf16": zero.astype(ml_dtypes.bfloat16),
        "row": zero[None], "strings": np.array([b"p", b"q"]), "strings2": np.array([b"p", b"q"]),
        "others": np.array([b"p", b"r"]),
    }  # fmt: skip
    for name, array in tensors.items():
        is_text = array.dtype.kind == "S"
        _add(model, name, ir.StringTensor(array.astype(object)) if is_text else ir.tensor(array))
    apply(DeduplicateInitializers(), model, {"x": nan})
    assert set(model.graph.initializers) == set(tensors) - {"nan2", "strings2"}
    first = model.graph.initializers["nan"]
    assert len(first.uses()) == 2


def test_weights_are_not_read_c113() -> None:
    def fail() -> ir.TensorProtocol:
        raise AssertionError("read")

    model = _model()
    for name in ("a", "b"):
        _add(model, f"unloaded.{name}", None)
        _add(model, f"lazy.{name}", ir.LazyTensor(fail, ir.DataType.FLOAT, ir.Shape([2])))
        leaf = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
        _add(model, f"derived.{name}", DerivedTensor(Leaf(leaf)))
        _add(model, f"large.{name}", ir.tensor(np.zeros(20_000, np.float32)))
    assert DeduplicateInitializers()(model).modified is False
    assert len(model.graph.initializers) == 8


def test_interface_and_subgraphs_stay_c058_c098(apply: Any) -> None:
    model = apply(
        DeduplicateInitializers(),
        """<ir_version: 10, opset_import: ["": 24]>
        g (bool c, float[2] i) => (float[2] y, float[2] z)
        <float[2] i = {1, 2}, float[2] a = {1, 2}, float[2] b = {1, 2}> {
            d = Add(a, i)
            y = If(c) <
                then_branch = t () => (float[2] r) <float[2] p = {1, 2}, float[2] q = {1, 2}> {
                    s = Add(p, b) r = Add(s, q) },
                else_branch = e () => (float[2] u) { u = Add(d, b) }>
            z = Neg(b)
        }""",
        {"c": np.array(True), "i": np.float32([5, 6])},
    )
    assert list(model.graph.initializers) == ["i", "a"]
    (branch, *_) = model.graph.subgraphs()
    assert list(branch.initializers) == ["p"]
