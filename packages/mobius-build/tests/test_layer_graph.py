"""One layer of a model: which one, which nodes it has, and what goes in and out."""

from __future__ import annotations

import onnx_ir as ir

from mobius.layer_graph import Layer, layer_graph, pick_layer

THREE_LAYERS = """<ir_version: 10, opset_import: ["" : 24]>
g (float[2] x, float[2] shared) => (float[2] y, float[2] cache)
<float[2] w0 = {1, 1}, float[2] w1 = {1, 1},
 float[2] w2 = {1, 1}> {
  a = Mul(x, w0)
  a2 = Add(a, shared)
  one = Constant <value_float = 1.0> ()
  b = Mul(a2, w1)
  cache = Exp(b)
  b2 = Add(b, one)
  c = Mul(b2, w2)
  y = Neg(c)
}"""


def numbered() -> ir.Model:
    """Return the model with weights named as a checkpoint names them."""
    model = ir.from_onnx_text(THREE_LAYERS)
    for value in list(model.graph.initializers.values()):
        value.name = f"model.layers.{str(value.name)[1:]}.scale"
    return model


def named(pattern: str) -> ir.Model:
    """Return the model with nodes named by layer and operator, and weights that are not."""
    model = ir.from_onnx_text(THREE_LAYERS)
    for node, layer in zip(model.graph, [0, 0, 1, 1, 1, 1, 2, 2], strict=True):
        node.name = pattern.format(layer, node.op_type)
    return model


def test_a_layer_in_the_middle_is_picked() -> None:
    assert pick_layer(numbered()) == Layer("model.layers", 1)


def test_nodes_without_numbers_belong_to_the_layer_they_follow() -> None:
    graph = layer_graph(numbered(), Layer("model.layers", 1))
    assert graph is not None
    described = [(n.op_type, n.inputs, n.reads, n.writes) for n in graph.nodes]
    assert described == [
        ("Constant", (), (), ()),  # goes to its only reader
        ("Mul", (), ("a2",), ()),
        ("Exp", (1,), (), ("cache",)),
        ("Add", (1, 0), (), ("b2",)),
    ]


def test_a_weight_that_layers_share_moves_no_node() -> None:
    model = numbered()
    shared = next(iter(model.graph.initializers.values()))
    product = [node for node in model.graph if node.op_type == "Mul"][2]
    product.replace_input_with(1, shared)  # the third layer reads a weight of the first
    graph = layer_graph(model, Layer("model.layers", 0))
    assert graph is not None
    assert [node.op_type for node in graph.nodes] == ["Mul", "Add"]


def test_names_of_nodes_come_before_those_of_weights() -> None:
    model = named("/encoder/block.{}/{}")
    assert pick_layer(model) == Layer("encoder.block", 1)
    graph = layer_graph(model, Layer("encoder.block", 1))
    assert graph is not None
    assert [node.op_type for node in graph.nodes] == ["Constant", "Mul", "Exp", "Add"]


def test_experts_are_not_taken_for_layers() -> None:
    model = named("layers.{}.experts.{}.7.x")
    assert pick_layer(model) == Layer("layers", 1)


def test_a_model_without_numbered_names_has_no_layers() -> None:
    model = ir.from_onnx_text(THREE_LAYERS)
    assert pick_layer(model) is None
    assert layer_graph(model, Layer("model.layers", 0)) is None
