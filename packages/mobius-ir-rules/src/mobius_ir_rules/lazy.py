"""Weights that are computed from other weights: an expression over values -> a lazy tensor.

A pass that moves a weight (transposes, packs, casts it) has no data to move: weights are bound
after the graph is final, and are often larger than memory. It writes down what to do instead. A
`DerivedTensor` is that expression with a dtype and a shape; its data exist only while they are
read, which is while saving, one tensor at a time. Peak memory of a read is the result and one
leaf, and no data are cached.

The leaves are `ir.Value`s: the weights as the checkpoint has them, under their own names. Once
derived from, a leaf belongs to no graph, so whoever binds weights must look it up with
`weight_values`.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from mobius_ir_rules.expressions import (
    Cast,
    Concat,
    Expression,
    Leaf,
    Reshape,
    Slice,
    Transpose,
    UnloadedWeightError,
    static_shape,
)

__all__ = [
    "Cast",
    "Concat",
    "DerivedTensor",
    "Expression",
    "Leaf",
    "Reshape",
    "Slice",
    "Transpose",
    "UnloadedWeightError",
    "expression_of",
    "is_small_materialized",
    "weight_values",
]


def is_small_materialized(tensor: ir.TensorProtocol | None, limit: int) -> bool:
    """Whether `tensor` has at most `limit` bytes and its data are in memory already.

    Lazy, external and derived tensors are never "materialized", whatever their size: reading one
    may open a file or compute something. Asking reads no data.
    """
    if isinstance(tensor, ir.StringTensor):
        return sum(map(len, tensor.string_data())) <= limit
    if isinstance(tensor, ir.Tensor):
        return isinstance(tensor.raw, np.ndarray) and tensor.nbytes <= limit
    return isinstance(tensor, (ir.TensorProtoTensor, ir.PackedTensor)) and tensor.nbytes <= limit


class DerivedTensor(ir.LazyTensor):
    """A tensor whose data an expression computes anew at each read. Safe to read from threads.

    `numpy()`, `tobytes()` and `tofile()` raise `UnloadedWeightError` if a leaf has no data yet, and
    ValueError if a leaf's data are not of its declared dtype and shape.

    Attributes:
        expression: What to compute.
    """

    def __init__(self, expression: Expression, name: str | None = None) -> None:
        """Store the expression; nothing is computed.

        Args:
            expression: What to compute.
            name: The tensor's name, that of the value that holds it.
        """
        shape = ir.Shape(expression.shape, frozen=True)
        super().__init__(self._materialize, expression.dtype, shape, name=name)
        self.expression = expression

    @property
    def leaves(self) -> tuple[ir.Value, ...]:
        """The weights that the data come from, each once, in order of first use."""
        return tuple(dict.fromkeys(self.expression.leaves()))

    def is_ready(self) -> bool:
        """Whether every leaf has data."""
        return all(
            leaf.const_value.is_ready()
            if isinstance(leaf.const_value, DerivedTensor)
            else leaf.const_value is not None
            for leaf in self.leaves
        )

    def _materialize(self) -> ir.TensorProtocol:
        return ir.Tensor(self.expression.materialize(), dtype=self.dtype)

    def __repr__(self) -> str:
        """Say what the tensor is derived from, without computing it."""
        names = ", ".join(repr(leaf.name) for leaf in self.leaves)
        return f"DerivedTensor<{self.dtype},{self.shape}>(name={self.name!r}, leaves=[{names}])"


def expression_of(value: ir.Value) -> Expression | None:
    """Return how to compute the data of an initializer, or None if dtype or shape are unknown.

    The expression of a derived initializer is its own, so that expressions of expressions have
    checkpoint weights as leaves.
    """
    if isinstance(value.const_value, DerivedTensor):
        return value.const_value.expression
    if value.dtype is None or static_shape(value) is None:
        return None
    return Leaf(value)


def weight_values(model: ir.Model) -> dict[str, ir.Value]:
    """Return the values to bind weights to, by checkpoint name, in graph order.

    That is each initializer of each graph of `model`, and in place of a derived one the leaves
    that it is derived from.
    """
    values: dict[str, ir.Value] = {}
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if isinstance(value.const_value, DerivedTensor):
                values.update((str(leaf.name), leaf) for leaf in value.const_value.leaves)
            else:
                values[name] = value
    return values
