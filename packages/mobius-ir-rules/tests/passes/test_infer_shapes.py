"""`InferShapes`: what is missing is added, what is known stays, what is wrong is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from mobius_ir_rules.expressions import Leaf
from mobius_ir_rules.lazy import DerivedTensor
from mobius_ir_rules.passes import InferShapes, ShapeInferenceError

HEADER = '<ir_version: 10, opset_import: ["": 24]>'


def _values(model: ir.Model) -> dict[str, str]:
    return {
        str(value.name): f"{value.dtype.name if value.dtype else None}{value.shape}"
        for node in model.graph.all_nodes()
        for value in node.outputs
    }


@pytest.mark.parametrize("whole", [True, False])
def test_symbolic_dimensions_stay(apply: Any, whole: bool) -> None:
    model = apply(
        InferShapes(whole),
        f"""{HEADER} g (float["batch", "sequence", 4] x) => (float["b", "s", "h"] y)
        <float[4] w = {{1, 2, 3, 4}}> {{
            h = Mul(x, w) c = Softmax(h) i = Shape(x) d = Cast<to = 16>(c)
            y = Identity(x)
        }}""",
        {"x": np.zeros((1, 2, 4), np.float32)},
    )
    assert _values(model) == {
        "h": "FLOAT[batch,sequence,4]",
        "c": "FLOAT[batch,sequence,4]",
        "i": "INT64[3]",
        "d": "BFLOAT16[batch,sequence,4]",
        "y": "FLOAT[b,s,h]",
    }


def test_sizes_go_through_shape_arithmetic_c099(apply: Any) -> None:
    """Head sizes are known after Reshape(x, Concat(Shape...)); INT64_MAX is no dimension (C099)."""
    model = apply(
        InferShapes(),
        f"""{HEADER} g (float["b", "s", 32] x) => (float[p, q, r, t] y) {{
            k = Constant<value_ints = [4, 8]>() i = Shape<start = 0, end = 2>(x)
            j = Concat<axis = 0>(i, k) h = Reshape(x, j)
            one = Constant<value_ints = [1]>() last = Constant<value_ints = [9223372036854775807]>()
            u = Slice(x, one, last, one) v = Shape(u) w = Add(v, one)
            y = Identity(h)
        }}""",
        {"x": np.zeros((1, 2, 32), np.float32)},
    )
    values = _values(model)
    assert values["h"] == "FLOAT[b,s,4,8]"
    assert values["w"] == "INT64[3]"
    for node in model.graph:
        for value in node.outputs:
            assert value.shape is not None
            assert all(dim < 2**31 for dim in value.shape if isinstance(dim, int))


def test_known_types_are_kept_and_unknown_operators_passed_over(apply: Any) -> None:
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 24, "com.microsoft": 1]>
        g (float["b", 2] x) => (float["b", 2] y) {
            a = com.microsoft.FastGelu(x) b = com.microsoft.FastGelu(a) c = Neg(a) d = Neg(b)
            y = Add(c, d) }"""
    )
    typed = model.graph[0].outputs[0]
    typed.dtype, typed.shape = ir.DataType.FLOAT, ir.Shape(["mine", 2])
    apply(InferShapes(), model, {"x": np.float32([[1, 2]])})
    values = _values(model)
    assert values["a"] == "FLOAT[mine,2]"
    assert values["c"] == "FLOAT[mine,2]"
    assert values["b"] == values["d"] == "NoneNone"


def test_functions_and_subgraphs_c098(apply: Any) -> None:
    model = apply(
        InferShapes(),
        """<ir_version: 10, opset_import: ["": 24, "f": 1]>
        g (float["b", 2] x, bool c) => (float[n, 2] y) {
            a = f.one(x)
            d = If(c) <then_branch = t () => (r) { s = Neg(a) r = Neg(s) },
                       else_branch = e () => (q) { q = Neg(x) }>
            y = Neg(d) }
        <domain: "f", opset_import: ["": 24]> one (u) => (v) { w = Abs(u) v = Neg(w) }""",
        {"x": np.float32([[1, 2]]), "c": np.array(True)},
    )
    values = _values(model)
    assert {values[name] for name in "adsrq"} == {"FLOAT[b,2]"}


@pytest.mark.parametrize("whole", [True, False])
def test_errors_are_raised_and_nothing_changes(whole: bool) -> None:
    """The stock pass logs a warning and goes on."""
    model = ir.from_onnx_text(
        f"""{HEADER} g (float["b", 2] x, float[3] z) => (float[n] y) {{
            a = Neg(z) b = MatMul(x, z) y = Neg(b) }}"""
    )
    with pytest.raises(ShapeInferenceError, match="MatMul"):
        InferShapes(whole)(model)


def test_weights_are_not_read_c109_c113(caplog: Any) -> None:
    """C109, C113: weights of any kind, in the graph and in branches, are types and shapes."""

    def fail() -> ir.TensorProtocol:
        raise AssertionError("read")

    model = ir.from_onnx_text(
        f"""{HEADER} g (float["b", 4] x, bool c) => (float[n, 4] y) {{
            a = Neg(x) b = Neg(x) d = Neg(x) y = If(c) <
                then_branch = t () => (r) {{ r = Neg(x) }},
                else_branch = e () => (q) {{ q = Abs(x) }}> }}"""
    )
    leaf = ir.val("leaf", ir.DataType.FLOAT, (4, 8))
    shape = ir.Shape([4, 8])
    tensors = [None, ir.LazyTensor(fail, ir.DataType.FLOAT, shape), DerivedTensor(Leaf(leaf))]
    for node, tensor in zip(list(model.graph)[:3], tensors, strict=True):
        weight = ir.Value(
            name=f"w_{node.outputs[0].name}",
            type=ir.TensorType(ir.DataType.FLOAT),
            shape=shape,
            const_value=tensor,
        )
        model.graph.initializers.add(weight)
        node.op_type = "MatMul"
        node.resize_inputs(2)
        node.replace_input_with(1, weight)
    branch = model.graph[3].attributes["then_branch"].as_graph()
    inner = ir.val("inner", ir.DataType.FLOAT, (4, 4))
    branch.initializers.add(inner)
    branch[0].op_type = "MatMul"
    branch[0].resize_inputs(2)
    branch[0].replace_input_with(1, inner)
    names = list(model.graph.initializers)
    for whole in (True, False):
        assert InferShapes(whole)(model).modified is whole
    values = _values(model)
    assert {values[name] for name in "abd"} == {"FLOAT[b,8]"}
    assert values["r"] == "FLOAT[b,4]"
    assert list(model.graph.initializers) == names
    assert len(model.graph.inputs) == 2
    assert not caplog.records


def test_operator_that_the_opset_does_not_define() -> None:
    """ONNX Runtime has a LayerNormalization of its own before opset 17; graphs carry it."""
    model = ir.from_onnx_text(
        '<ir_version: 7, opset_import: ["": 12]> g (float[2,4] x, float[4] w) => (float[2,4] z) '
        "{ y = LayerNormalization(x, w) z = Neg(y) }"
    )
    InferShapes()(model)
    assert model.graph[0].outputs[0].shape is None
