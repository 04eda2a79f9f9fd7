"""`make_names_unique`: one name, one value; the interface keeps its names."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from mobius_ir_rules.passes import check_model_invariants, make_names_unique
from mobius_ir_rules.testing import run_model

TEXT = """<ir_version: 10, opset_import: ["": 24, "f": 1]>
    g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
        a = Neg(x)
        b = If(c) <
            then_branch = t () => (float[2] r) <float[2] v = {3, 4}> { p = Add(a, v) r = Neg(p) },
            else_branch = e () => (float[2] q) { s = Abs(x) q = Add(s, w) }>
        y = f.one(b) }
    <domain: "f", opset_import: ["": 24]> one (x) => (y) { a = Neg(x) y = Neg(a) }"""


def test_names_c077() -> None:
    """C077: names in sibling branches and a branch's initializer; functions are their own world."""
    model = ir.from_onnx_text(TEXT)
    inputs = {"x": np.float32([1, -2]), "c": np.array(True)}
    expected = run_model(model, inputs)["y"]
    then, other = model.graph.subgraphs()
    then[0].outputs[0].name = other[0].outputs[0].name = "s"
    then.initializers["v"].name = "w"
    then.outputs[0].name = "y"
    for node in model.graph.all_nodes():
        node.name = "n"
    assert make_names_unique(model) is True
    check_model_invariants(model, input_names=["x", "c"], output_names=["y"])
    assert list(model.graph.initializers) == ["w"]
    assert list(then.initializers) == ["w_2"]
    assert [node.outputs[0].name for node in model.functions["f", "one", ""]] == ["a", "y"]
    assert make_names_unique(model) is False
    np.testing.assert_array_equal(run_model(model, inputs)["y"], expected)


def test_missing_names_and_omitted_outputs() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 24]> g (float[2] x) => (float[2] y) '
        "{ a, b = Split<num_outputs = 2>(x) y = Neg(a) }"
    )
    model.graph[0].outputs[1].name = ""
    model.graph[0].outputs[0].name = None
    model.graph[1].name = None
    assert make_names_unique(model) is True
    assert model.graph[0].outputs[1].name == ""
    assert model.graph[0].outputs[0].name == "value"
    assert model.graph[1].name == "Neg"


def test_subgraphs_of_other_domains_keep_their_interface() -> None:
    """BeamSearch finds the inputs and outputs of its two graphs by name."""
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 24, "other": 1]> g (float[2] x) => (float[2] y) {
            a = Neg(x)
            y = other.Search(a) <
                encoder = e (float[2] ids) => (float[2] out) { s = Neg(ids) out = Abs(s) },
                decoder = d (float[2] more) => (float[2] end) { u = Abs(more) end = Neg(u) }> }"""
    )
    encoder, decoder = model.graph.subgraphs()
    decoder.inputs[0].name, decoder.outputs[0].name = "ids", "out"
    decoder[0].outputs[0].name = "ids"
    assert make_names_unique(model) is True
    assert [value.name for value in (*encoder.inputs, *encoder.outputs)] == ["ids", "out"]
    assert [value.name for value in (*decoder.inputs, *decoder.outputs)] == ["ids", "out"]
    assert decoder[0].outputs[0].name == "ids_2"
    check_model_invariants(model)
    assert make_names_unique(model) is False
