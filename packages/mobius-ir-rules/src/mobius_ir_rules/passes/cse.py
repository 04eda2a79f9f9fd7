"""`EliminateCommonSubexpressions`: nodes that compute the same thing twice -> one of them."""

from __future__ import annotations

import struct
from collections.abc import Collection, Hashable

import onnx_ir as ir

from mobius_ir_rules.functions.masks import DOMAIN as MASK_DOMAIN
from mobius_ir_rules.lazy import is_small_materialized
from mobius_ir_rules.passes.graphs import (
    all_nodes,
    complete_type,
    detach,
    graph_attributes,
    scopes,
)

_NON_DETERMINISTIC = frozenset(
    {
        ("", "RandomNormal"),
        ("", "RandomNormalLike"),
        ("", "RandomUniform"),
        ("", "RandomUniformLike"),
        ("", "Multinomial"),
        ("", "Bernoulli"),
        ("com.microsoft", "BiasDropout"),
        ("com.microsoft", "BitmaskDropout"),
        ("com.microsoft", "BitmaskBiasDropout"),
        ("com.microsoft", "Sampling"),
    }
)


def is_non_deterministic(node: ir.Node) -> bool:
    """Whether a standard or com.microsoft operator may give different results for equal inputs.

    `Dropout` counts unless it is plainly in inference mode (no `training_mode` input).
    """
    if (node.domain, node.op_type) == ("", "Dropout"):
        return len(node.inputs) > 2 or "is_test" in node.attributes
    return (node.domain, node.op_type) in _NON_DETERMINISTIC


class EliminateCommonSubexpressions(ir.passes.InPlacePass):
    """Merge nodes of one graph with equal operator, inputs, attributes and output count.

    Attributes are compared in full: name, type, and data by bits, so that 0.0 and -0.0, or equal
    numbers of two dtypes, stay apart. Never merged: random operators and training Dropout, calls
    of functions that contain one, nodes with subgraphs, nodes with a tensor attribute of more
    than `tensor_limit` bytes, operators of domains that are not known to be pure, and nodes of
    different graphs (a branch's values do not exist outside of it). Linear in the graph's size.
    """

    def __init__(
        self,
        tensor_limit: int = 1024,
        pure_domains: Collection[str] = ("", "ai.onnx.ml", "com.microsoft", MASK_DOMAIN),
    ) -> None:
        """Configure the pass.

        Args:
            tensor_limit: Largest tensor attribute that is read and compared, in bytes.
            pure_domains: Domains whose operators are functions of their inputs, unless listed
                here as random. A model-local function is judged by its body instead.
        """
        super().__init__()
        self._tensor_limit = tensor_limit
        self._pure_domains = frozenset(pure_domains)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass."""
        pure_functions = self._pure_functions(model)
        modified = False
        for graph in scopes(model):
            seen: dict[Hashable, ir.Node] = {}
            merged: list[ir.Node] = []
            for node in graph:
                if not self._is_pure(node, model, pure_functions):
                    continue
                key = self._key(node)
                if key is None:
                    continue
                first = seen.setdefault(key, node)
                if first is not node and _merge(first, node):
                    merged.append(node)
            if merged:
                graph.remove(merged)
                modified = True
        return ir.passes.PassResult(model, modified)

    def _is_pure(
        self, node: ir.Node, model: ir.Model, pure_functions: Collection[ir.OperatorIdentifier]
    ) -> bool:
        identifier = node.op_identifier()
        if identifier in model.functions:
            return identifier in pure_functions
        return node.domain in self._pure_domains and not is_non_deterministic(node)

    def _pure_functions(self, model: ir.Model) -> set[ir.OperatorIdentifier]:
        """Return the functions without an impure node, transitively."""
        pure = set(model.functions)
        while True:
            impure = {
                identifier
                for identifier in pure
                if not all(
                    self._is_pure(node, model, pure)
                    for node in all_nodes(model.functions[identifier])
                )
            }
            if not impure:
                return pure
            pure -= impure

    def _key(self, node: ir.Node) -> Hashable | None:
        """Return what equal nodes have in common, or None if this one is never equal."""
        if graph_attributes(node):
            return None
        attributes = []
        for name in sorted(node.attributes):
            value = self._attribute_key(node.attributes[name])
            if value is None:
                return None
            attributes.append((name, node.attributes[name].type, value))
        present = tuple(bool(output.name) for output in node.outputs)
        return node.op_identifier(), node.inputs, present, tuple(attributes)

    def _attribute_key(self, attribute: ir.Attr) -> Hashable | None:
        if attribute.is_ref():
            return "ref", attribute.ref_attr_name
        match attribute.type:
            case ir.AttributeType.INT | ir.AttributeType.STRING:
                return "value", attribute.value
            case ir.AttributeType.INTS | ir.AttributeType.STRINGS:
                return "value", tuple(attribute.value)
            case ir.AttributeType.FLOAT:
                return "value", struct.pack("d", attribute.value)
            case ir.AttributeType.FLOATS:
                return "value", tuple(struct.pack("d", item) for item in attribute.value)
            case ir.AttributeType.TENSOR:
                return tensor_key(attribute.as_tensor(), self._tensor_limit)
        return None


def tensor_key(tensor: ir.TensorProtocol | None, limit: int) -> Hashable | None:
    """Return dtype, shape and data by bits of a small tensor in memory, else None.

    Equal keys mean equal tensors: NaN equals itself here, and 0.0 does not equal -0.0.
    """
    if tensor is None or not is_small_materialized(tensor, limit):
        return None
    shape = tuple(tensor.shape.numpy())
    if tensor.dtype == ir.DataType.STRING:
        return tensor.dtype, shape, tuple(tensor.numpy().reshape(-1).tolist())
    return tensor.dtype, shape, tensor.tobytes()


def _merge(first: ir.Node, second: ir.Node) -> bool:
    """Let `first` take the place of `second`; False if both make outputs of the graph."""
    pairs = list(zip(first.outputs, second.outputs, strict=True))
    if any(new.is_graph_output() and old.is_graph_output() for new, old in pairs):
        return False
    for new, old in pairs:
        if old.is_graph_output():
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            new.type, new.shape = old.type or new.type, old.shape or new.shape
            new.name = old.name
        else:
            old.replace_all_uses_with(new)
            complete_type(new, old)
    detach(second)
    return True
