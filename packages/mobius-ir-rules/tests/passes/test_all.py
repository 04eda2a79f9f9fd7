"""Every pass, and all of them in a row, on models with every kind of scope."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from mobius_ir_rules import passes
from mobius_ir_rules.passes import check_model_invariants
from mobius_ir_rules.testing import run_model

SCOPES = """<ir_version: 10, opset_import: ["": 24, "f": 1, "unused": 1]>
g (float["n", 2] x, int64 trips, bool c) => (float["n", 2] y, float["n", 2] z, float[m, 2] scanned)
<float[2] w = {1, 2}, float[2] w2 = {1, 2}, float[2, 2] p = {1, 2, 3, 4}> {
    a = Identity(x)
    b = f.outer(a)
    b2 = f.outer(x)
    t = Transpose<perm = [1, 0]>(p)
    d = If(c) <
        then_branch = t1 () => (float["n", 2] r) {
            e = If(c) <
                then_branch = t2 () => (float["n", 2] r2) { h = MatMul(b, t) r2 = Add(h, w) },
                else_branch = e2 () => (float["n", 2] q2) { h2 = MatMul(b2, t) q2 = Add(h2, w2) }>
            i = Identity(e)
            r = Add(i, w2) },
        else_branch = e1 () => (float["n", 2] q) { j = Neg(b) k = Neg(b) q = Add(j, k) }>
    l = Loop(trips, c, d) <body = body (int64 step, bool going, float["n", 2] s)
        => (bool going2, float["n", 2] s2) <float[2] v = {1, 2}, float[2] v2 = {1, 2}> {
        going2 = Identity(going)
        two = Constant<value_float = 2.0>()
        four = Mul(two, two)
        u = Mul(s, four)
        u2 = Mul(u, v)
        s2 = Mul(u2, v2) }>
    total, scanned = Scan<num_scan_inputs = 1, body = sb (float[2] st, float[2] row)
        => (float[2] st2, float[2] out) { st2 = Add(st, row) st3 = Add(st, row) out = Neg(st3) }>
        (w, x)
    o = Identity(l)
    y = Identity(o)
    z = Identity(o)
    dead = If(c) <then_branch = t3 () => (float[2] r3) { r3 = Neg(total) },
                  else_branch = e3 () => (float[2] q3) { q3 = Abs(w) }>
}
<domain: "f", opset_import: ["": 24, "f": 1, "unused": 1]> outer (u) => (v) {
    i = Identity(u) d = f.inner(i) d2 = f.inner(i) v = Add(d, d2) }
<domain: "f", opset_import: ["": 24]> inner (u) => (v) {
    two = Constant<value_float = 2.0>() three = Add(two, two) v = Mul(u, three) }
<domain: "f", opset_import: ["": 24]> forgotten (u) => (v) { v = Neg(u) }
"""

INPUTS = [
    {"x": np.float32([[1, -2], [3, 5]]), "trips": np.array(trips), "c": np.array(c)}
    for trips, c in [(2, True), (0, False)]
]

# A branch without nodes: its output is its initializer.
EMPTY = """<ir_version: 10, opset_import: ["": 24]>
g (float[2] x, bool c) => (float[2] y) {
    a = Neg(x)
    b = If(c) <then_branch = t () => (float[2] r) <float[2] r = {1, 2}> { },
               else_branch = e () => (float[2] q) { q = Add(a, x) }>
    y = Identity(b)
}"""

ALL = [
    passes.ClearMetadata(),
    passes.EliminateIdentity(),
    passes.FoldConstants(),
    passes.DeduplicateInitializers(),
    passes.EliminateCommonSubexpressions(),
    passes.InferShapes(),
    passes.InlineFunctions(),
    passes.FoldWeights(0),
    passes.RemoveUnused(),
]


def _check(model: ir.Model, steps: list[ir.passes.PassBase], inputs: list[Any]) -> None:
    interface = [(v.name, str(v.type), str(v.shape)) for v in _io(model)]
    expected = [run_model(model, arrays) for arrays in inputs]
    for step in steps:
        step(model)
        assert [(v.name, str(v.type), str(v.shape)) for v in _io(model)] == interface
    for arrays, before in zip(inputs, expected, strict=True):
        after = run_model(model, arrays)
        for name, array in before.items():
            np.testing.assert_array_equal(after[name], array, strict=True)
    text = ir.to_proto(model).SerializeToString(deterministic=True)
    assert not any([step(model).modified for step in steps])
    assert ir.to_proto(model).SerializeToString(deterministic=True) == text


def _io(model: ir.Model) -> list[ir.Value]:
    return [*model.graph.inputs, *model.graph.outputs]


@pytest.mark.parametrize("step", ALL, ids=lambda step: type(step).__name__)
def test_each_pass_c058_c098(step: ir.passes.PassBase) -> None:
    _check(ir.from_onnx_text(SCOPES), [step], INPUTS)


@pytest.mark.parametrize("step", ALL, ids=lambda step: type(step).__name__)
def test_branches_without_nodes_c098(step: ir.passes.PassBase) -> None:
    inputs = [{"x": np.float32([1, -2]), "c": np.array(c)} for c in (True, False)]
    _check(ir.from_onnx_text(EMPTY), [step], inputs)


@pytest.mark.parametrize("order", [1, -1])
def test_all_passes_in_a_row(order: int) -> None:
    model = ir.from_onnx_text(SCOPES)
    steps = ALL[::order]
    for _ in range(3):  # what one pass leaves to another that ran before it
        for step in steps:
            step(model)
    check_model_invariants(
        model,
        allowed_domains={""},
        input_names=["x", "trips", "c"],
        output_names=["y", "z", "scanned"],
    )
    assert model.graph.opset_imports == {"": 24}
    assert not model.functions
    _check(model, steps, INPUTS)
    reference = ir.from_onnx_text(SCOPES)
    for arrays in INPUTS:
        expected = run_model(reference, arrays)
        for name, array in run_model(model, arrays).items():
            np.testing.assert_array_equal(array, expected[name], strict=True)


def test_passes_keep_nothing_between_models() -> None:
    """The same instances on two models in turn do what new ones do."""
    texts = [SCOPES, EMPTY, SCOPES]
    results = []
    for text in texts:
        model = ir.from_onnx_text(text)
        for step in ALL:
            state = dict(vars(step))
            step(model)
            assert vars(step) == state
        results.append(ir.to_proto(model).SerializeToString(deterministic=True))
    assert results[0] == results[2]
