"""What the passes share: which operators have subgraphs."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from mobius_ir_rules.passes.graphs import WITH_SUBGRAPHS, graph_attributes


def test_operators_with_subgraphs_are_those_of_the_schemas() -> None:
    kinds = {onnx.defs.OpSchema.AttrType.GRAPH, onnx.defs.OpSchema.AttrType.GRAPHS}
    found = {
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.domain == ""
        for attribute in schema.attributes.values()
        if attribute.type in kinds
    }
    assert found == WITH_SUBGRAPHS


def test_subgraphs_of_operators_of_other_domains_are_found() -> None:
    first, second, third = (ir.Graph([], [], nodes=[], name=name) for name in "abc")
    attributes = [
        ir.AttrGraph("decoder", first),
        ir.AttrGraphs("more", [second, third]),
        ir.RefAttr("own", "outer", ir.AttributeType.GRAPH),
        ir.AttrInt64("number", 1),
    ]
    node = ir.Node("com.microsoft", "BeamSearch", [], attributes)
    assert list(graph_attributes(node)) == [first, second, third]
    assert list(graph_attributes(ir.Node("", "Relu", [], attributes))) == []
