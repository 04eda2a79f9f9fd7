"""`FoldConstants`: nodes that compute from small constants, or choose by one -> the result."""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir

from mobius_ir_rules.passes.constants import constant_array, constant_tensor
from mobius_ir_rules.passes.evaluate import evaluate, is_evaluable, predicted_size
from mobius_ir_rules.passes.graphs import GraphLike, graph_attributes, remove_nodes, roots
from mobius_ir_rules.passes.identity import eliminate_identity
from mobius_ir_rules.passes.unique_names import make_names_unique

logger = logging.getLogger(__name__)


class FoldConstants(ir.passes.InPlacePass):
    """Compute, once, what depends on constants only; in the graph, subgraphs and functions.

    * A deterministic standard operator on constants becomes a `Constant` node. Values are those
      of ONNX's reference implementation, in the operator's own dtype (bfloat16 and float8 too).
    * `Shape` and `Size` of a value whose dimensions are known become a `Constant` node.
    * An `If` on a constant becomes the nodes and initializers of the branch that it takes.

    Constants and results are at most `limit` bytes each; a result that would be larger is not
    even computed. Lazy, external, derived and unloaded tensors are never read: weights are the
    business of `FoldWeights`.
    """

    def __init__(self, limit: int = 64 * 1024) -> None:
        """Configure the pass: `limit` is the size of the largest constant and result, in bytes."""
        super().__init__()
        self._limit = limit

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass."""
        folds = 0
        for root in roots(model):
            version = root.opset_imports.get("", model.opset_imports.get("", 0))
            for node in root:
                folds += self._visit(node, root, version)
        if folds:
            # Names of a branch need to be unique among its enclosing graphs only, until it is
            # moved into one of them.
            make_names_unique(model)
        return ir.passes.PassResult(model, bool(folds))

    def _visit(self, node: ir.Node, graph: GraphLike, version: int) -> int:
        """Fold `node` if possible, else what is in its subgraphs; return the number of folds."""
        if node.domain == "":
            branch = _branch_taken(node)
            if branch is not None and _can_inline(branch, graph):
                moved = _inline_branch(node, branch, graph)
                return 1 + sum(self._visit(inner, graph, version) for inner in moved)
            tensor = self._result(node, version)
            if tensor is not None:
                _replace_by_constant(node, tensor, graph)
                return 1
        return sum(
            self._visit(inner, subgraph, version)
            for subgraph in graph_attributes(node)
            for inner in subgraph
        )

    def _result(self, node: ir.Node, version: int) -> ir.TensorProtocol | None:
        """Return what `node` computes, if that is known and small."""
        if node.op_type in ("Shape", "Size"):
            return _shape_or_size(node)
        if not is_evaluable(node):
            return None
        inputs: dict[str, np.ndarray] = {}
        for value in node.inputs:
            if value is None:
                continue
            tensor = constant_tensor(value, self._limit)
            if tensor is None or tensor.dtype == ir.DataType.STRING:
                return None
            inputs[str(value.name)] = tensor.numpy()
        size = predicted_size(node, [inputs[str(v.name)] for v in node.inputs if v is not None])
        if size > self._limit:
            return None
        try:
            array = evaluate(node, inputs, version)
        except Exception as error:
            # An operator on arguments that it refuses. That is an error only if it ever runs,
            # which in a branch it may not, so the runtime is to say so.
            logger.info("%s (node %r) stays: %s", node.op_type, node.name, error)
            return None
        tensor = ir.tensor(array)
        declared = node.outputs[0].dtype
        if tensor.nbytes > self._limit or (declared is not None and declared != tensor.dtype):
            return None
        return tensor


def _shape_or_size(node: ir.Node) -> ir.TensorProtocol | None:
    source = node.inputs[0]
    if source is None or source.shape is None:
        return None
    dims = list(source.shape)
    if node.op_type == "Shape":
        # As Python does, ONNX clamps and counts negative positions from the end.
        dims = dims[node.attributes.get_int("start", 0) : _end(node)]
    sizes = [dim for dim in dims if isinstance(dim, int)]
    if len(sizes) != len(dims):
        return None
    array = np.array(sizes, np.int64)
    return ir.tensor(array if node.op_type == "Shape" else np.array(array.prod(), np.int64))


def _end(node: ir.Node) -> int | None:
    return node.attributes["end"].as_int() if "end" in node.attributes else None


def _replace_by_constant(node: ir.Node, tensor: ir.TensorProtocol, graph: GraphLike) -> None:
    (old,) = node.outputs
    constant = ir.node("Constant", [], {"value": tensor}, name=node.name)
    new = constant.outputs[0]
    new.type = old.type or ir.TensorType(tensor.dtype)
    # The declared shape of an output is part of the model's interface, symbolic as it may be.
    new.shape = old.shape if old.is_graph_output() else ir.Shape(tensor.shape.numpy())
    graph.insert_before(node, constant)
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    new.name = old.name
    remove_nodes(graph, [node])


def _branch_taken(node: ir.Node) -> ir.Graph | None:
    """Return the branch of an If on a constant."""
    condition = constant_array(node.inputs[0]) if node.op_type == "If" else None
    if condition is None:
        return None
    attribute = node.attributes["then_branch" if condition.all() else "else_branch"]
    return None if attribute.is_ref() else attribute.as_graph()


def _can_inline(branch: ir.Graph, graph: GraphLike) -> bool:
    """Whether the branch's initializers have a place in `graph`: a function's body has none."""
    return isinstance(graph, ir.Graph) or not branch.initializers


def _inline_branch(node: ir.Node, branch: ir.Graph, graph: GraphLike) -> list[ir.Node]:
    """Replace the If by the contents of the branch; return the nodes that came from there."""
    results = list(branch.outputs)
    branch.outputs.clear()
    for name, value in tuple(branch.initializers.items()):
        assert isinstance(graph, ir.Graph)
        del branch.initializers[name]
        while value.name in graph.initializers:
            value.name = f"{value.name}_branch"
        graph.initializers.add(value)
    moved = list(branch)
    branch.remove(moved)
    graph.insert_before(node, moved)
    copies = []
    for old, result in zip(node.outputs, results, strict=True):
        copy = ir.node("Identity", [result])
        graph.insert_before(node, copy)
        new = copy.outputs[0]
        new.type, new.shape = old.type or result.type, old.shape or result.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        new.name = old.name
        copies.append(copy)
    remove_nodes(graph, [node])
    for copy in copies:
        eliminate_identity(graph, copy)
    return moved
