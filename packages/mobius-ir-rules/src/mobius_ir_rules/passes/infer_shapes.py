"""`InferShapes`: values without a type or shape -> what ONNX's own inference says of them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from mobius_ir_rules.lazy import is_small_materialized
from mobius_ir_rules.passes.constants import constant_tensor
from mobius_ir_rules.passes.graphs import GraphLike, all_nodes, graph_attributes

_SMALL = 1024


class ShapeInferenceError(ValueError):
    """A node's inputs contradict its operator's definition."""


class InferShapes(ir.passes.InPlacePass):
    """Give a type and shape to the values that lack one; what is known is never changed.

    With `whole_graph`, ONNX infers the whole model at once, which follows sizes through `Shape`,
    `Gather` and `Concat` into `Reshape`; otherwise node by node, which is cheaper if few values
    are missing. Weights are described by type and shape only: their data are never read. A model
    in which nothing is missing costs one look at each value.

    Raises:
        ShapeInferenceError: If types or shapes contradict each other.
    """

    def __init__(self, whole_graph: bool = True) -> None:
        """Configure the pass."""
        super().__init__()
        self._whole_graph = whole_graph

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass."""
        if not any(_lacks(node, model) for node in all_nodes(model.graph)):
            return ir.passes.PassResult(model, False)
        modified = _infer_model(model) if self._whole_graph else False
        modified |= infer_missing(model)
        return ir.passes.PassResult(model, modified)


def infer_missing(model: ir.Model) -> bool:
    """Infer node by node, in the main graph and its subgraphs, what outputs lack.

    Nodes of functions, and of domains that ONNX does not define, are passed over.

    Returns:
        Whether a value got a type or shape.

    Raises:
        ShapeInferenceError: If a node contradicts its operator's definition.
    """
    return _infer_graph(model.graph, model)


def _lacks(node: ir.Node, model: ir.Model) -> bool:
    """Whether ONNX could know more about an output of `node`."""
    known = node.domain == "" or node.op_identifier() in model.functions
    return known and any(_is_incomplete(value, model) for value in node.outputs)


def _is_incomplete(value: ir.Value, model: ir.Model) -> bool:
    """Whether type or shape are missing; what the model's outputs declare is left alone."""
    if not value.name or (value.type is not None and value.shape is not None):
        return False
    return not (value.is_graph_output() and value.graph is model.graph)


def _infer_model(model: ir.Model) -> bool:
    graph = model.graph
    if any(
        _is_weight(value) for inner in graph.subgraphs() for value in inner.initializers.values()
    ):
        return False  # Their data would have to be serialized with the subgraph.
    proto = _describe(model)
    try:
        inferred = onnx.shape_inference.infer_shapes(
            proto, check_type=True, strict_mode=True, data_prop=True
        )
    except onnx.shape_inference.InferenceError as error:
        raise ShapeInferenceError(str(error)) from error
    missing = {
        value.name: value
        for node in all_nodes(graph)
        for value in node.outputs
        if _is_incomplete(value, model)
    }
    found = [
        _complete(missing[info.name], info.type)
        for info in _value_infos(inferred.graph)
        if info.name in missing
    ]
    return any(found)


def _is_weight(value: ir.Value) -> bool:
    return not is_small_materialized(value.const_value, _SMALL)


def _describe(model: ir.Model) -> onnx.ModelProto:
    """Return a proto of the model in which large initializers are graph inputs, without data."""
    graph = model.graph
    proto = onnx.ModelProto(
        ir_version=model.ir_version,
        opset_import=[
            onnx.OperatorSetIdProto(domain=domain, version=version)
            for domain, version in model.opset_imports.items()
        ],
        functions=[ir.serde.serialize_function(item) for item in model.functions.values()],
    )
    proto.graph.name = graph.name or "main"
    described = {id(value): value for value in (*graph.inputs, *graph.initializers.values())}
    for value in described.values():
        if value.is_initializer() and not value.is_graph_input() and not _is_weight(value):
            assert value.const_value is not None
            tensor = ir.serde.serialize_tensor(value.const_value)
            tensor.name = value.name or ""
            proto.graph.initializer.append(tensor)
        else:
            proto.graph.input.append(ir.serde.serialize_value(value))
    for node in graph:
        proto.graph.node.append(ir.serde.serialize_node(node))
        for value in node.outputs:
            if value.name and value.type is not None and not value.is_graph_output():
                proto.graph.value_info.append(ir.serde.serialize_value(value))
    proto.graph.output.extend(ir.serde.serialize_value(value) for value in graph.outputs)
    return proto


def _value_infos(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from graph.value_info
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _value_infos(inner)
                yield from inner.output


def _infer_graph(graph: GraphLike, model: ir.Model) -> bool:
    modified = False
    for node in graph:
        inner = [_infer_graph(subgraph, model) for subgraph in graph_attributes(node)]
        modified |= any(inner)
        if not inner and node.domain == "" and _lacks(node, model):
            modified |= _infer_node(node, model)
    return modified


def _infer_node(node: ir.Node, model: ir.Model) -> bool:
    version = model.opset_imports.get("")
    # Some graphs carry operators that their opset does not define (ONNX Runtime's own
    # LayerNormalization before opset 17): nothing is known of them.
    if version is None or not onnx.defs.has(node.op_type, version):
        return False
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for value in node.inputs:
        if value is None:
            continue
        if value.type is None or value.name is None:
            return False
        types[value.name] = ir.serde.serialize_value(value).type
        tensor = constant_tensor(value, _SMALL)
        if tensor is not None:
            data[value.name] = ir.serde.serialize_tensor(tensor)
    schema = onnx.defs.get_schema(node.op_type, version)
    try:
        inferred = onnx.shape_inference.infer_node_outputs(
            schema, ir.serde.serialize_node(node), types, data
        )
    except onnx.shape_inference.InferenceError as error:
        raise ShapeInferenceError(f"{node.op_type} (node {node.name!r}): {error}") from error
    found = [
        _complete(value, inferred[str(value.name)])
        for value in node.outputs
        if value.name in inferred and _is_incomplete(value, model)
    ]
    return any(found)


def _complete(value: ir.Value, proto: onnx.TypeProto) -> bool:
    """Fill in type and shape of `value` where unknown; return whether either is new."""
    before = (value.type, value.shape)
    if value.type is None:
        value.type = ir.serde.deserialize_type_proto_for_type(proto)
    if value.shape is None:
        value.shape = ir.serde.deserialize_type_proto_for_shape(proto)
    return before != (value.type, value.shape)
