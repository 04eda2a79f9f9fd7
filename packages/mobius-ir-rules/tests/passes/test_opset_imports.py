"""`CompleteOpsetImports`: what ONNX Runtime tolerates becomes what the standard wants."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from mobius_ir_rules.passes import CompleteOpsetImports, check_model_invariants
from mobius_ir_rules.testing import run_model

TEXT = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "f": 1]>
    g (float[2,4] x) => (float[2,4] y) { a = com.microsoft.QuickGelu(x) y = f.one(a) }
    <domain: "f", opset_import: ["": 21]> one (x) => (y) { y = Neg(x) }"""


def test_alias_and_missing_imports() -> None:
    model = ir.from_onnx_text(TEXT)
    model.graph.opset_imports["ai.onnx"] = model.graph.opset_imports.pop("")
    del model.graph.opset_imports["com.microsoft"]
    function = model.functions["f", "one", ""]
    del function.opset_imports[""]
    function[0].domain = "ai.onnx"
    assert CompleteOpsetImports()(model).modified
    assert dict(model.graph.opset_imports) == {"": 21, "com.microsoft": 1, "f": 1}
    assert dict(function.opset_imports) == {"": 21}
    check_model_invariants(model)
    onnx.checker.check_model(ir.to_proto(model))
    assert not CompleteOpsetImports()(model).modified


def test_what_is_complete_or_unknown_stays() -> None:
    model = ir.from_onnx_text(TEXT)
    assert not CompleteOpsetImports()(model).modified
    model.graph.opset_imports.pop("f")
    assert not CompleteOpsetImports()(model).modified
    assert "f" not in model.graph.opset_imports


def test_subgraphs_count() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (bool c, float[2] x) => (float[2] y) {
        y = If(c) <then_branch = t () => (float[2] p) { p = com.microsoft.QuickGelu(x) },
                   else_branch = e () => (float[2] q) { q = Neg(x) }> }"""
    model = ir.from_onnx_text(text)
    assert CompleteOpsetImports()(model).modified
    assert model.graph.opset_imports["com.microsoft"] == 1
    run_model(model, {"c": np.array(True), "x": np.float32([1, 2])})
