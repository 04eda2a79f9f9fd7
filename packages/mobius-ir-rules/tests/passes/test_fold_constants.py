"""`FoldConstants`: exact values, small ones only, and branches that are taken."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from mobius_ir_rules.expressions import Leaf
from mobius_ir_rules.lazy import DerivedTensor
from mobius_ir_rules.passes import FoldConstants, RemoveUnused
from mobius_ir_rules.testing import op_counts, run_model

HEADER = '<ir_version: 10, opset_import: ["": 24]>'
X = {"x": np.float32([1, -2, 3])}


def _fold(apply: Any, body: str, output: str = "float[n]", modified: bool = True) -> ir.Model:
    model = apply(
        FoldConstants(),
        f"{HEADER} g (float[3] x) => ({output} y) {{ {body} }}",
        X,
        modified=modified,
    )
    RemoveUnused()(model)
    return model


def _result(model: ir.Model) -> np.ndarray:
    node = model.graph.outputs[0].producer()
    assert node is not None
    assert node.op_type == "Constant"
    tensor = node.attributes["value"].as_tensor()
    assert tensor.dtype == model.graph.outputs[0].dtype
    return tensor.numpy()


def test_arithmetic_in_chains(apply: Any) -> None:
    model = _fold(
        apply,
        """a = Constant<value_int = 7>() b = Constant<value_int = -2>() c = Div(a, b)
        k = Constant<value_ints = [0]>() d = Unsqueeze(c, k) e = Concat<axis = 0>(d, k)
        y = Cast<to = 1>(e)""",
    )
    assert _result(model).tolist() == [-3, 0]  # integer division truncates
    assert op_counts(model) == Counter(Constant=1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_floats_are_exact_c059(apply: Any, dtype: str) -> None:
    """C059: through plain numpy, bfloat16 constants come out as UINT16 values."""
    model = apply(
        FoldConstants(),
        f"""{HEADER} g () => ({dtype}[1] y) {{
            i = Constant<value_ints = [1]>() b = Constant<value_floats = [0.00390625]>()
            a = Cast<to = {16 if dtype == "bfloat16" else 10}>(i) c = CastLike(b, a)
            d = Add(a, c) y = Add(d, c) }}""",
    )
    # Each sum rounds: 1 + 2^-8 is 1 in bfloat16, and 1 + 2^-8 + 2^-8 is 1 too.
    result = _result(model)
    assert result.dtype == (ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)
    assert float(result[0]) == (1.0 if dtype == "bfloat16" else 1 + 2**-7)


def test_float8_casts_saturate_c059(apply: Any) -> None:
    model = apply(
        FoldConstants(),
        f"""{HEADER} g () => (float8e4m3fn[2] y) {{
            a = Constant<value_floats = [1.1, 1000.0]>() y = Cast<to = 17>(a) }}""",
    )
    assert _result(model).dtype == ml_dtypes.float8_e4m3fn
    assert _result(model).astype(np.float32).tolist() == [1.125, 448]


@pytest.mark.parametrize(
    "node",
    [
        "Range(zero, million, one)",
        "ConstantOfShape(sizes)",
        "Expand(row, sizes)",
        "Tile(row, sizes)",
        "Add(row, column)",
        "Gather(row, many)",
    ],
)
def test_large_results_are_not_computed_c109(apply: Any, node: str, monkeypatch: Any) -> None:
    """C109: 16 TB of ones are neither stored nor made on the way."""

    def fail(*arguments: object) -> None:
        raise AssertionError("computed")

    monkeypatch.setattr("mobius_ir_rules.passes.fold_constants.evaluate", fail)
    model = ir.from_onnx_text(
        f"""{HEADER} g () => (float y) {{
            zero = Constant<value_int = 0>() one = Constant<value_int = 1>()
            million = Constant<value_int = 1000000000000>()
            sizes = Constant<value_ints = [1, 4000000, 4000000]>()
            y = Constant<value_float = 1.0>() z = {node} }}"""
    )
    for name, array in {
        "row": np.ones((1, 1, 5000), np.float32),
        "column": np.ones((1, 5000, 1), np.float32),
        "many": np.zeros(8000, np.int64),
    }.items():
        constant = ir.node("Constant", [], {"value": ir.tensor(array)})
        constant.outputs[0].name = name
        model.graph.insert_before(model.graph[0], constant)
        for index, value in enumerate(model.graph[-1].inputs):
            if value is not None and value.name == name:
                model.graph[-1].replace_input_with(index, constant.outputs[0])
    apply(FoldConstants(), model, modified=False, valid=False)


def test_small_results_of_growing_operators(apply: Any) -> None:
    for node, expected in {
        "Range(zero, five, two)": [0, 2, 4],
        "Expand(five, sizes)": [5, 5],
        "Tile(sizes, sizes)": [2, 2],
        "Gather(sizes, zero)": 2,
        "ConstantOfShape<value = int64[1] {3}>(sizes)": [3, 3],
    }.items():
        model = apply(
            FoldConstants(),
            f"""{HEADER} g () => (int64[n] y) {{
                zero = Constant<value_int = 0>() five = Constant<value_int = 5>()
                two = Constant<value_int = 2>() sizes = Constant<value_ints = [2]>()
                y = {node} }}""",
            {} if "Gather" not in node else None,
        )
        assert _result(model).tolist() == expected


def test_slice_to_the_end_c099(apply: Any) -> None:
    """C099: INT64_MAX as an end is no size."""
    model = _fold(
        apply,
        """s = Constant<value_ints = [1]>() e = Constant<value_ints = [9223372036854775807]>()
        a = Slice(x, s, e) b = Shape(a) c = Constant<value_ints = [5, 6, 7]>()
        d = Slice(c, s, e) f = Add(b, d) y = Cast<to = 1>(f)""",
    )
    kinds = op_counts(model)
    assert kinds["Shape"] == 1  # the size of `a` is not declared
    assert kinds["Slice"] == 1


def test_known_shapes(apply: Any) -> None:
    model = apply(
        FoldConstants(),
        f"""{HEADER} g (float["n", 3, 4] x) => (int64[p] a, int64[q] b, int64 c, int64[r] d) {{
            a = Shape<start = 1>(x) b = Shape<start = -2, end = -1>(x)
            k = Constant<value = float[2, 3] {{0, 0, 0, 0, 0, 0}}>()
            c = Size(x) d = Shape(x) }}""",
        {"x": np.zeros((2, 3, 4), np.float32)},
    )
    assert op_counts(model) == Counter(Constant=3, Size=1, Shape=1)


@pytest.mark.parametrize(
    "node",
    ["RandomUniform<shape = [1]>()", "Bernoulli(p)", "RandomNormalLike(p)", "Dropout(p, p, t)"],
)
def test_random_operators_are_not_folded_c057(apply: Any, node: str) -> None:
    body = f"p = Constant<value_float = 0.5>() t = Constant<value = bool {{1}}>() y = {node}"
    apply(FoldConstants(), f"{HEADER} g () => (float y) {{ {body} }}", modified=False)


def test_weights_are_not_read_c113_c110() -> None:
    def fail() -> ir.TensorProtocol:
        raise AssertionError("read")

    model = ir.from_onnx_text(f"{HEADER} g (float[2] x) => (float[2] y) {{ y = Identity(x) }}")
    leaf = ir.val("leaf", ir.DataType.FLOAT, (1,))
    tensors = {
        "unloaded": None,
        "lazy": ir.LazyTensor(fail, ir.DataType.FLOAT, ir.Shape([1])),
        "derived": DerivedTensor(Leaf(leaf)),
        "large": ir.tensor(np.zeros(20_000, np.float32)),
    }
    for name, tensor in tensors.items():
        value = ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.FLOAT),
            shape=ir.Shape([1]),
            const_value=tensor,
        )
        model.graph.initializers.add(value)
        model.graph.append(ir.node("Neg", [value]))
        model.graph.append(ir.node("Transpose", [value]))
    assert FoldConstants()(model).modified is False


def test_graph_inputs_are_no_constants_c058(apply: Any) -> None:
    text = f"{HEADER} g (float[2] w) => (float[2] y) <float[2] w = {{1, 2}}> {{ y = Neg(w) }}"
    apply(FoldConstants(), text, {"w": np.float32([5, 6])}, modified=False)


def test_what_the_operator_refuses_stays(apply: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    model = ir.from_onnx_text(
        f"""{HEADER} g () => (float[2] y) {{
            a = Constant<value_floats = [1.0, 2.0]>() s = Constant<value_ints = [3]>()
            y = Reshape(a, s) }}"""
    )
    apply(FoldConstants(), model, modified=False)
    assert any("Reshape" in record.getMessage() for record in caplog.records)


def test_constant_branches_keep_their_initializers_c097(apply: Any) -> None:
    """C097: the branch's initializer survives, under a name of its own."""
    text = f"""{HEADER} g (float[2] x) => (float[2] y)
        <float[2] w = {{1, 2}}, bool c = {{CONDITION}}> {{
            u = Neg(x)
            z = If(c) <
                then_branch = t () => (float[2] r) <float[2] v = {{3, 4}}> {{
                    a = Add(x, v) r = Add(a, w) }},
                else_branch = e () => (float[2] q) {{ a2 = Sub(x, w) q = Sub(a2, u) }}>
            a3 = Abs(z)
            y = Add(a3, w)
        }}"""
    x = {"x": np.float32([1, -2])}
    taken = ir.from_onnx_text(text.replace("CONDITION", "1"))
    expected = run_model(taken, x)["y"]
    branch = taken.graph[1].attributes["then_branch"].as_graph()
    branch.initializers["v"].name = "w"  # legal in a branch, and now it must get out of the way
    branch[0].outputs[0].name = "u"
    for step in (FoldConstants(), RemoveUnused()):
        apply(step, taken)
    np.testing.assert_array_equal(run_model(taken, x)["y"], expected, strict=True)
    assert op_counts(taken) == Counter(Add=3, Abs=1)
    assert sorted(taken.graph.initializers) == ["w", "w_branch"]
    other = apply(FoldConstants(), text.replace("CONDITION", "0"), x)
    assert op_counts(other) == Counter(Neg=1, Sub=2, Abs=1, Add=1)


def test_constant_branches_with_outer_values_as_outputs_c058(apply: Any) -> None:
    model = apply(
        FoldConstants(),
        f"""{HEADER} g (float[2] x) => (float[2] y, float[2] z) <bool c = {{1}}> {{
            u = Neg(x)
            y, z = If(c) <
                then_branch = t () => (float[2] r, float[2] s) {{
                    i = Identity(u) r = Neg(i) s = Identity(x) }},
                else_branch = e () => (float[2] q, float[2] p) {{ q = Abs(u) p = Abs(x) }}>
        }}""",
        {"x": np.float32([1, -2])},
    )
    assert [value.name for value in model.graph.outputs] == ["y", "z"]
    assert op_counts(model)["If"] == 0


def test_nested_scopes_and_functions_c098(apply: Any) -> None:
    """Constants fold in a Loop's body, in functions and their branches; arguments stay open."""
    model = apply(
        FoldConstants(),
        """<ir_version: 10, opset_import: ["": 24, "f": 1]>
        g (float[2] x, int64 n, bool c) => (float[2] y) {
            z = Loop(n, c, x) <body = b (int64 i, bool k, float[2] s) => (bool k2, float[2] s2) {
                k2 = Identity(k) p = Constant<value_float = 2.0>() q = Mul(p, p)
                s2 = Mul(s, q) }>
            y = f.scale<factor = 3.0>(z)
        }
        <domain: "f", opset_import: ["": 24]> scale <factor> (u) => (v) {
            c = Constant<value_float: float = @factor>() d = Constant<value_float = 0.5>()
            e = Mul(d, d) t = Constant<value = bool {1}>() h = Mul(c, e)
            v = If(t) <then_branch = p () => (r) { w = Add(e, e) l = Mul(u, w) r = Mul(l, h) },
                       else_branch = o () => (q) { q = Neg(u) }> }""",
        {"x": np.float32([1, -2]), "n": np.array(2), "c": np.array(True)},
    )
    (body,) = model.graph.subgraphs()
    assert Counter(node.op_type for node in body) == Counter(Identity=1, Constant=2, Mul=1)
    kinds = Counter(node.op_type for node in model.functions["f", "scale", ""])
    assert kinds == Counter(Constant=5, Mul=3)
