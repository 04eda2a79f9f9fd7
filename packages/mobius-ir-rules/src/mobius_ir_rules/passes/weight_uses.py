"""What weights are used for: a model in, each weight with the nodes that multiply or look it up.

A use is read from the graph alone: which operand it is, how it is transposed, and where the result
goes. No name is looked at.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from mobius_ir_rules.expressions import Cast, Concat, Expression, Reshape, Transpose
from mobius_ir_rules.functions.routed_experts import INPUTS, LAYERS, ROUTED_EXPERTS
from mobius_ir_rules.lazy import DerivedTensor, expression_of
from mobius_ir_rules.passes.graphs import scopes
from mobius_ir_rules.rule import RefusedError, refuse
from mobius_ir_rules.values import (
    MICROSOFT,
    describe_node,
    describe_value,
    float_attribute,
    input_at,
    int_attribute,
    is_weight,
    producer_of,
    rank,
)

__all__ = ["Use", "UseKind", "WeightUse", "expression_of_rows", "find_uses"]

_PRODUCTS = (("", "MatMul"), (MICROSOFT, "FusedMatMul"))
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_MATRIX, _STACK = 2, 3  # ranks
_NORMS = frozenset(
    {
        "LayerNormalization",
        "RMSNormalization",
        "SimplifiedLayerNormalization",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
    }
)
_ELEMENTWISE = frozenset({"Add", "Cast", "Div", "Identity", "Mul", "Sub", "Tanh"})
_BEFORE_CHOICE = _ELEMENTWISE | {"Reshape", "Sigmoid", "Softmax", "Squeeze", "Unsqueeze"}
_CHOICES = {("", "TopK"): 0, (MICROSOFT, "MoE"): 1, (MICROSOFT, "QMoE"): 1}


class UseKind(enum.StrEnum):
    """What a weight is to the model."""

    PRODUCT = "product"
    HEAD = "head"
    """A product whose result leaves the graph, but for elementwise operators."""
    ROUTER = "router"
    """A product whose result chooses experts."""
    TABLE = "table"
    """Looked up; the rows are what the layers start from."""
    EXPERTS = "experts"
    """Matrices, one for each expert of a mixture."""


@dataclasses.dataclass(frozen=True)
class WeightUse:
    """A use, for whoever decides what becomes of it.

    Attributes:
        names: The checkpoint weights that the weight is made of.
        kind: What it is to the model.
        rows: Number of rows, `N`: outputs of a product, entries of a table, outputs of all experts.
        columns: Length of a row, `K`.
    """

    names: tuple[str, ...]
    kind: UseKind
    rows: int
    columns: int


@dataclasses.dataclass(frozen=True, eq=False)
class Use:
    """A node that uses a weight.

    Attributes:
        node: The node.
        weight: The initializer.
        turned: The rows are the initializer's columns.
        kind: What the weight is to the model.
        layer: Of the weight of experts, which of the node's it is: `"fc1"` or `"fc2"`.
    """

    node: ir.Node
    weight: ir.Value
    turned: bool
    kind: UseKind
    layer: str = ""

    def describe(self) -> WeightUse:
        """Return what whoever decides need know."""
        tensor = self.weight.const_value
        leaves = tensor.leaves if isinstance(tensor, DerivedTensor) else (self.weight,)
        rows, columns = expression_of_rows(self.weight, turned=self.turned).shape
        return WeightUse(tuple(str(leaf.name) for leaf in leaves), self.kind, rows, columns)


def find_uses(model: ir.Model) -> Iterator[Use | tuple[ir.Node, str]]:
    """Yield each use of a weight, in graph order, or the node and why it is none that can change.

    Products of two values that are computed are no candidates, and are not mentioned.
    """
    for graph in scopes(model):
        for node in graph:
            for find in _finders(node):
                try:
                    use = find(node)
                except RefusedError as error:
                    yield node, error.reason
                    continue
                if use is not None:
                    yield use


def expression_of_rows(weight: ir.Value, *, turned: bool) -> Expression:
    """Return the rows `[N, K]` of a weight that is known to be a matrix, or a stack of them."""
    expression = expression_of(weight)
    assert expression is not None  # its type and shape are known
    if len(expression.shape) > _MATRIX:
        return Reshape(expression, (math.prod(expression.shape[:-1]), expression.shape[-1]))
    return _transposed(expression) if turned else expression


def _transposed(expression: Expression) -> Expression:
    """Return the transpose, taking transposes away instead of adding one where that is the same."""
    if isinstance(expression, Transpose):
        return expression.source
    if isinstance(expression, Concat):
        return Concat(tuple(map(_transposed, expression.sources)), 1 - expression.axis)
    if isinstance(expression, Cast):
        return Cast(_transposed(expression.source), expression.dtype)
    return Transpose(expression, (1, 0))


def _finders(node: ir.Node) -> Sequence[Callable[[ir.Node], Use | None]]:
    operator = (node.domain, node.op_type)
    if operator in _PRODUCTS:
        return (_product,)
    if operator == ("", "Gather"):
        return (_lookup,)
    if operator == ROUTED_EXPERTS:
        return [functools.partial(_experts, layer=layer) for layer in LAYERS]
    return (_other_stack,) if node.domain else ()


def _experts(node: ir.Node, layer: str) -> Use | None:
    weight = input_at(node, INPUTS.index(layer))
    if weight is None or input_at(node, INPUTS.index(f"{layer}_scales")) is not None:
        return None  # integers already
    static = weight.shape is not None and weight.shape.is_static()
    if not (is_weight(weight) and static and rank(weight) == _STACK and weight.dtype in _FLOATS):
        refuse(
            f"The weight '{layer}' of {describe_node(node)}, {describe_value(weight)}, is "
            f"{weight.dtype} {weight.shape}; a constant of FLOAT, FLOAT16 or BFLOAT16 with a "
            "matrix for each expert is needed.",
            node,
        )
    return Use(node, weight, turned=False, kind=UseKind.EXPERTS, layer=layer)


def _other_stack(node: ir.Node) -> None:
    """Refuse an operator of another domain with stacked weights."""
    for value in node.inputs:
        if value is None or not is_weight(value):
            continue
        if rank(value) == _STACK and value.dtype in _FLOATS:
            refuse("The weights of several experts are in one tensor; matrices are needed.", node)


def _product(node: ir.Node) -> Use | None:
    left, right = input_at(node, 0), input_at(node, 1)
    weight, turned = _matrix(right, node)
    if weight is None:
        if left is not None and is_weight(left) and rank(left) == 2:
            refuse(
                f"{describe_node(node)} has its weight, {describe_value(left)}, on the left; one "
                "on the right is needed.",
                node,
            )
        return None
    if operator_flags := _flags(node):
        refuse(
            f"{describe_node(node)} has {operator_flags}; a plain product, or one with transB, is "
            "needed.",
            node,
        )
    if rank(left) == 1:
        refuse(f"{describe_node(node)} multiplies a vector; 2 or more axes are needed.", node)
    # The rows of a quantized weight are the outputs: columns of the right operand.
    turned ^= not int_attribute(node, "transB", 0)
    _require_matrix(node, weight)
    return Use(node, weight, turned, _kind_of_product(node))


def _matrix(value: ir.Value | None, node: ir.Node) -> tuple[ir.Value | None, bool]:
    """Return the initializer that a value is, or is the transpose of, and which of the two."""
    transpose = producer_of(value, "", "Transpose")
    if transpose is not None and is_weight(transpose.inputs[0]):
        perm = transpose.attributes.get("perm")
        if rank(transpose.inputs[0]) == 2 and (perm is None or list(perm.as_ints()) == [1, 0]):
            return transpose.inputs[0], True
    if value is not None and value.is_initializer() and value.is_graph_input():
        refuse(
            f"The weight of {describe_node(node)}, '{value.name}', is an input of the graph, which "
            "a caller may replace; a constant is needed.",
            node,
        )
    return (value, False) if is_weight(value) else (None, False)


def _flags(node: ir.Node) -> str:
    """Return what a FusedMatMul does besides, in words; empty for a plain product."""
    names = ("transA", "transBatchA", "transBatchB")
    flags = [f"{name}=1" for name in names if int_attribute(node, name, 0)]
    if (alpha := float_attribute(node, "alpha", 1.0)) != 1.0:
        flags.append(f"alpha={alpha:g}")
    return ", ".join(flags)


def _require_matrix(node: ir.Node, weight: ir.Value) -> None:
    static = weight.shape is not None and weight.shape.is_static()
    if weight.dtype not in _FLOATS or not static or rank(weight) != 2:
        refuse(
            f"The weight of {describe_node(node)}, {describe_value(weight)}, is {weight.dtype} "
            f"{weight.shape}; a matrix of FLOAT, FLOAT16 or BFLOAT16 is needed.",
            node,
        )


def _lookup(node: ir.Node) -> Use | None:
    table = input_at(node, 0)
    if (
        not is_weight(table)
        or table is None
        or rank(table) != 2
        or table.dtype not in _FLOATS
        or int_attribute(node, "axis", 0) not in (0, -2)
        or not _starts_layers(node.outputs[0])
    ):
        return None
    _require_matrix(node, table)
    return Use(node, table, turned=False, kind=UseKind.TABLE)


def _kind_of_product(node: ir.Node) -> UseKind:
    result = node.outputs[0]
    if any(value.is_graph_output() for value in _onward(result, _is_elementwise)):
        return UseKind.HEAD
    for value in _onward(result, _leads_to_choice):
        for user, index in value.uses():
            if _CHOICES.get((user.domain, user.op_type)) == index:
                return UseKind.ROUTER
    return UseKind.PRODUCT


def _starts_layers(result: ir.Value) -> bool:
    """Return whether rows of a table go into a norm, or a product with another weight.

    Tables of sines and cosines do not: they multiply what is in the layers already.
    """
    for value in _onward(result, _keeps_rows):
        for user, index in value.uses():
            if user.op_type in _NORMS:
                return True
            if (user.domain, user.op_type) in _PRODUCTS and index == 0:
                other = input_at(user, 1)
                transpose = producer_of(other, "", "Transpose")
                if is_weight(other if transpose is None else transpose.inputs[0]):
                    return True
    return False


def _is_elementwise(node: ir.Node) -> bool:
    return node.op_type in _ELEMENTWISE


def _leads_to_choice(node: ir.Node) -> bool:
    return node.op_type in _BEFORE_CHOICE


def _keeps_rows(node: ir.Node) -> bool:
    """Return whether a node adds to rows, or scales them by a constant."""
    if node.op_type in ("Mul", "Div"):
        return any(map(_is_constant, node.inputs))
    return node.op_type in ("Add", "Cast", "Identity", "Sub")


def _is_constant(value: ir.Value | None) -> bool:
    return is_weight(value) or producer_of(value, "", "Constant") is not None


def _onward(value: ir.Value, through: Callable[[ir.Node], bool]) -> Iterator[ir.Value]:
    """Yield the value and what standard operators, `through` which it goes, make of it, once."""
    waiting, seen = [value], {value}
    while waiting:
        current = waiting.pop()
        yield current
        for user, _ in current.uses():
            if user.domain == "" and through(user):
                fresh = [output for output in user.outputs if output not in seen]
                seen.update(fresh)
                waiting.extend(fresh)
