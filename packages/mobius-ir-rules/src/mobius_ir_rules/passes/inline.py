"""`InlineFunctions`: calls of chosen model-local functions -> the nodes of their bodies."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from mobius_ir_rules.passes.graphs import (
    GraphLike,
    all_nodes,
    roots,
    scopes,
    unique_name,
    value_names,
)
from mobius_ir_rules.passes.infer_shapes import infer_missing
from mobius_ir_rules.passes.unique_names import make_names_unique
from mobius_ir_rules.passes.unused import RemoveUnused, used_domains


class InlineFunctions(ir.passes.InPlacePass):
    """Inline the functions that `criteria` chooses, everywhere that they are called.

    `onnx_ir`'s `InlinePass` does the copying. Around it, this pass prepares calls that it gets
    wrong: an omitted output would take away the name of a value that the body itself reads, and
    an output that is an input of the function would rename the caller's value, which may be an
    input of the model. The names of dimensions in a body mean nothing outside of it, where they
    may be those of other dimensions: what can be inferred takes their place. Afterwards names are
    unique, new values have types, and functions and opset imports that are no longer needed are
    gone.

    Raises:
        onnx_ir.passes.PreconditionError: If functions call each other in a cycle.
        ValueError: If a function's opset differs from the model's.
    """

    def __init__(self, criteria: Callable[[ir.Function], bool] | None = None) -> None:
        """Configure the pass: `criteria` says which functions to inline; by default all."""
        super().__init__()
        self._criteria = criteria

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass."""
        chosen = {
            identifier
            for identifier, function in model.functions.items()
            if self._criteria is None or self._criteria(function)
        }
        if not any(node.op_identifier() in chosen for node in _nodes(model)):
            return ir.passes.PassResult(model, False)
        stock = common_passes.InlinePass(lambda function: function.identifier() in chosen)
        stock.requires(model)  # before anything is changed
        for identifier in chosen:
            _separate_outputs(model.functions[identifier])
            _forget_dimension_names(model.functions[identifier])
        own = set(_nodes(model))
        for root in roots(model):
            _complete_calls(root, model, chosen)
        stock(model)
        _import_inlined_domains(model)
        make_names_unique(model)
        RemoveUnused()(model)
        _infer_dimensions(model, own)
        return ir.passes.PassResult(model, True)


def _nodes(model: ir.Model) -> list[ir.Node]:
    return [node for graph in scopes(model) for node in graph]


def _separate_outputs(function: ir.Function) -> None:
    """Give each output of the body a node of its own, where it is an input or listed before."""
    outputs: set[ir.Value] = set()
    for index, output in enumerate(tuple(function.outputs)):
        if output.producer() is None or output in outputs:
            copied = ir.node("Identity", [output])
            name = unique_name(f"{output.name}_output", value_names(function))
            copied.outputs[0].name = name
            copied.outputs[0].type, copied.outputs[0].shape = output.type, output.shape
            function.append(copied)
            function.outputs[index] = copied.outputs[0]
        outputs.add(output)


def _forget_dimension_names(function: ir.Function) -> None:
    for node in all_nodes(function):
        for output in node.outputs:
            if output.shape is not None:
                dims = (dim if isinstance(dim, int) else None for dim in output.shape)
                output.shape = ir.Shape(dims)


def _infer_dimensions(model: ir.Model, own: set[ir.Node]) -> None:
    """Infer shapes of what was inlined; what inference cannot say stays as the body said it."""
    said = {
        output: output.shape
        for node in all_nodes(model.graph)
        if node not in own
        for output in node.outputs
        if output.shape is not None
        and not output.is_graph_output()
        and not all(isinstance(dim, int) or dim.value for dim in output.shape)
    }
    for output in said:
        output.shape = None
    infer_missing(model)
    for output, shape in said.items():
        if output.shape is None or len(output.shape) != len(shape):
            output.shape = shape
            continue
        pairs = zip(output.shape, shape, strict=True)
        output.shape = ir.Shape(given if isinstance(given, int) else dim for dim, given in pairs)


def _complete_calls(root: GraphLike, model: ir.Model, chosen: set[ir.OperatorIdentifier]) -> None:
    """Name every output of each chosen call, omitted and trailing ones too."""
    taken: set[str] | None = None
    for node in all_nodes(root):
        if node.op_identifier() not in chosen:
            continue
        function = model.functions[node.op_identifier()]
        if len(node.outputs) < len(function.outputs):
            node.resize_outputs(len(function.outputs))
        for output, formal in zip(node.outputs, function.outputs, strict=True):
            if not output.name:
                taken = value_names(root) if taken is None else taken
                output.name = unique_name(f"{node.name or node.op_type}_{formal.name}", taken)


def _import_inlined_domains(model: ir.Model) -> None:
    """Import, in functions that stay, the domains that came with bodies inlined into them."""
    for function in model.functions.values():
        for domain in sorted(used_domains(function) - set(function.opset_imports)):
            if domain in model.opset_imports:
                function.opset_imports[domain] = model.opset_imports[domain]
