"""`InlineFunctions`: bodies take the place of calls, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from mobius_ir_rules.passes import InlineFunctions
from mobius_ir_rules.testing import op_counts, run_model

X = {"x": np.float32([1, -2])}


def test_nested_functions_and_a_criterion_c105(apply: Any) -> None:
    text = """<ir_version: 10, opset_import: ["": 24, "f": 1, "k": 1]>
        g (float[2] x) => (float[2] y) { a = f.outer(x) b = f.outer(a) y = k.kept(b) }
        <domain: "f", opset_import: ["": 24, "f": 1]> outer (u) => (v) { d = Abs(u) v = f.inner(d) }
        <domain: "f", opset_import: ["": 24, "com.microsoft": 1]> inner (u) => (v) {
            d = com.microsoft.QuickGelu(u) v = Neg(d) }
        <domain: "k", opset_import: ["": 24, "f": 1]> kept (u) => (v) {
            e = f.outer(u) v = Exp(e) }"""
    model = apply(InlineFunctions(lambda function: function.domain == "f"), text, X)
    assert op_counts(model) == Counter(
        {"Abs": 2, "Neg": 2, "com.microsoft::QuickGelu": 2, "k::kept": 1}
    )
    assert list(model.functions) == [("k", "kept", "")]
    assert model.graph.opset_imports == {"": 24, "k": 1, "com.microsoft": 1}
    kept = model.functions["k", "kept", ""]
    assert kept.opset_imports == {"": 24, "com.microsoft": 1}
    assert [node.op_type for node in kept] == ["Abs", "QuickGelu", "Neg", "Exp"]
    apply(InlineFunctions(), model, X)
    assert model.graph.opset_imports == {"": 24, "com.microsoft": 1}
    assert not model.functions


def test_an_import_that_only_a_body_needed_goes_c105(apply: Any) -> None:
    """C105: inlining must not leave com.microsoft behind in an onnx-standard model."""
    model = apply(
        InlineFunctions(),
        """<ir_version: 10, opset_import: ["": 24, "com.microsoft": 1]>
        g (float[2] x) => (float[2] y) { y = com.microsoft.Mine(x) }
        <domain: "com.microsoft", opset_import: ["": 24]> Mine (u) => (v) { v = Neg(u) }""",
        X,
    )
    assert model.graph.opset_imports == {"": 24}


def test_names_are_unique_c077(apply: Any) -> None:
    """C077: a body's `u` must not shadow, or be shadowed by, the `u` of a branch further down."""
    model = apply(
        InlineFunctions(),
        """<ir_version: 10, opset_import: ["": 24, "f": 1]>
        g (float[2] x, bool c) => (float[2] y) {
            w = f.one(x)
            z = f.one(w)
            y = If(c) <
                then_branch = t () => (float[2] r) { u = Abs(x) s = f.one(u) r = Add(s, w) },
                else_branch = e () => (float[2] r2) { u1 = Neg(x) r2 = Add(u1, z) }>
        }
        <domain: "f", opset_import: ["": 24]> one (a) => (b) { u = Neg(a) b = Abs(u) }""",
        {**X, "c": np.array(True)},
    )
    assert op_counts(model) == Counter(Neg=4, Abs=4, If=1, Add=2)


def test_dimension_names_of_a_body_stay_in_it(apply: Any) -> None:
    """The body's `n` is the caller's `rows`; the caller's own `n` is another dimension."""
    model = apply(
        InlineFunctions(),
        """<ir_version: 10, opset_import: ["": 24, "f": 1]>
        g (float[rows, 2] x, float[n] other) => (float[rows, 2] y, float[n] z) {
            y = f.twice(x)
            z = Neg(other)
        }
        <domain: "f", opset_import: ["": 24]>
        twice (a) => (c) <float[n, 2] b, float[m, 2] r> {
            b = Neg(a)
            s = Shape(b)
            r = Reshape(b, s)
            c = Neg(r)
        }""",
        {"x": np.float32([[1, 2]]), "other": np.float32([3])},
    )
    shapes = {node.op_type: node.outputs[0].shape for node in model.graph if node.outputs[0].uses()}
    assert shapes["Neg"] == ["rows", 2]
    assert shapes["Reshape"] is not None
    assert shapes["Reshape"][0] != "m"
    assert shapes["Reshape"][1] == 2


def test_pass_through_outputs_c058(apply: Any) -> None:
    """C058: the stock pass renames the graph input `x` to `y`."""
    model = apply(
        InlineFunctions(),
        """<ir_version: 10, opset_import: ["": 24, "f": 1]>
        g (float[2] x) => (float[2] y, float[n] z, float[m] w) { y, z, w = f.pass(x) }
        <domain: "f", opset_import: ["": 24]> pass (a) => (a, b, b) { b = Neg(a) }""",
    )
    assert op_counts(model) == Counter(Neg=1, Identity=2)
    # ONNX Runtime refuses the function itself, so the numbers are spelled out.
    x = X["x"]
    results = run_model(model, X)
    for name, expected in {"y": x, "z": -x, "w": -x}.items():
        np.testing.assert_array_equal(results[name], expected, strict=True)


def test_omitted_outputs_c010(apply: Any) -> None:
    """The stock pass names the body's `t` like the omitted output: "", so that Abs lost it.

    A call with fewer outputs than the body has is complete too (C010: the stock pass raises).
    """
    model = apply(
        InlineFunctions(),
        """<ir_version: 10, opset_import: ["": 24, "f": 1]>
        g (float[2] x) => (float[2] y) {
            a, , c = f.three(x)
            b = f.three(a)
            d = Add(b, c)
            y = Identity(d)
        }
        <domain: "f", opset_import: ["": 24]> three (a) => (b, t, c) {
            t = Neg(a) b = Abs(t) c = Add(t, t) }""",
    )
    # ONNX Runtime refuses the call with one output, so the numbers are spelled out.
    x = X["x"]
    (result,) = run_model(model, X).values()
    np.testing.assert_array_equal(result, np.abs(x) - 2 * x, strict=True)
    assert op_counts(model) == Counter(Neg=2, Abs=2, Add=2, Identity=1)


def test_attributes_and_omitted_inputs(apply: Any) -> None:
    model = apply(
        InlineFunctions(),
        """<ir_version: 10, opset_import: ["": 24, "f": 1]>
        g (float[2] x) => (float[2] y) { a = f.clip<alpha = 2.0>(x) y = f.clip(a) }
        <domain: "f", opset_import: ["": 24]> clip <alpha: float = 0.5> (a, low, high) => (b) {
            c = LeakyRelu<alpha: float = @alpha>(a) b = Clip(c, low, high) }""",
        X,
    )
    assert [node.attributes["alpha"].as_float() for node in model.graph if node.attributes] == [
        2.0,
        0.5,
    ]


def test_new_values_have_types_c017(apply: Any) -> None:
    model = apply(
        InlineFunctions(),
        """<ir_version: 10, opset_import: ["": 24, "f": 1]>
        g (float16["n", 2] x) => (float16["n", 2] y) { y = f.one(x) }
        <domain: "f", opset_import: ["": 24]> one (a) => (b) {
            s = Shape(a) c = Neg(a) d = Reshape(c, s) b = Abs(d) }""",
        {"x": np.float16([[1, -2]])},
    )
    by_type = {node.op_type: node.outputs[0] for node in model.graph}
    assert by_type["Neg"].dtype == ir.DataType.FLOAT16
    assert by_type["Neg"].shape == ["n", 2]
    assert by_type["Shape"].dtype == ir.DataType.INT64
    assert by_type["Reshape"].dtype == ir.DataType.FLOAT16


def test_cycles_are_refused_c095() -> None:
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 24, "f": 1]>
        g (float[2] x, bool c) => (float[2] y) { y = f.a(x, c) }
        <domain: "f", opset_import: ["": 24, "f": 1]> a (u, c) => (v) {
            v = If(c) <then_branch = t () => (r) { r = f.b(u, c) },
                       else_branch = e () => (q) { q = Neg(u) }> }
        <domain: "f", opset_import: ["": 24, "f": 1]> b (u, c) => (v) { v = f.a(u, c) }"""
    )
    with pytest.raises(ir.passes.PreconditionError, match=r"Cyclic dependency.*f::a"):
        InlineFunctions()(model)
    assert len(model.functions) == 2


def test_other_opset_is_refused_c106() -> None:
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 24, "f": 1]>
        g (float[2] x) => (float[2] y) { y = f.a(x) }
        <domain: "f", opset_import: ["": 22]> a (u) => (v) { v = Neg(u) }"""
    )
    with pytest.raises(ValueError, match=r"domain '' has version 24 in the model but version 22"):
        InlineFunctions()(model)


def test_nothing_to_inline(apply: Any) -> None:
    text = """<ir_version: 10, opset_import: ["": 24, "f": 1]>
        g (float[2] x) => (float[2] y) { y = f.a(x) }
        <domain: "f", opset_import: ["": 24]> a (u) => (v) { v = Neg(u) }"""
    apply(InlineFunctions(lambda function: False), text, X, modified=False)
