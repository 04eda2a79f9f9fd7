"""`ClearMetadata`: builders' notes go, module paths and what describes the model stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from mobius_ir_rules.passes import ClearMetadata

TEXT = """<ir_version: 10, opset_import: ["": 24, "f": 1]>
    g (float[2] x, bool c) => (float[2] y) {
        a = f.one(x)
        y = If(c) <then_branch = t () => (float[2] r) { r = Neg(a) },
                   else_branch = e () => (float[2] q) { q = Abs(a) }> }
    <domain: "f", opset_import: ["": 24]> one (u) => (v) { v = Neg(u) }"""


def test_nodes_and_values_in_every_scope(apply: Any) -> None:
    model = ir.from_onnx_text(TEXT)
    model.metadata_props["author"] = "me"
    model.graph.doc_string = "a graph"
    function = model.functions["f", "one", ""]
    function.doc_string = "a function"
    nodes = [*model.graph.all_nodes(), *function.all_nodes()]
    for node in nodes:
        node.doc_string = "File x.py, line 1"
        node.metadata_props["namespace"] = "model.layers.0"
        node.metadata_props["pkg.onnxscript.name_scopes"] = "[]"
        node.outputs[0].metadata_props["pkg.torch.onnx.original_node_name"] = "n"
    model.graph.inputs[0].doc_string = "an input"
    apply(ClearMetadata(), model, {"x": np.float32([1, 2]), "c": np.array(True)})
    for node in nodes:
        assert node.doc_string is None
        assert node.metadata_props == {"namespace": "model.layers.0"}
        assert not node.outputs[0].metadata_props
    assert model.metadata_props == {"author": "me"}
    assert (model.graph.doc_string, function.doc_string) == ("a graph", "a function")
    apply(ClearMetadata(keep=()), model)
    assert not nodes[0].metadata_props


def test_nothing_to_clear(apply: Any) -> None:
    model = ir.from_onnx_text(TEXT)
    apply(ClearMetadata(), model, modified=False)
