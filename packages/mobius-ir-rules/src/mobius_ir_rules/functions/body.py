"""What function bodies are made with: a traced body in -> an `ir.Function`, and opset gaps filled.

A body holds standard operators only, imports the model's own opset and uses every one of its
inputs: a function body cannot ask whether an optional input was given. It reads none of its
outputs but the first and the last: a call may leave the others unnamed, and inliners then pass
the empty name on to the value that the body made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, build_function

from mobius_ir_rules.passes.graphs import all_nodes, unique_name

OLDEST_OPSET = 17
"""Oldest opset that the bodies are written for: the first one with LayerNormalization."""


def make_function(
    identifier: tuple[str, str],
    inputs: Sequence[str],
    outputs: Sequence[str],
    attributes: Sequence[ir.Attr],
    body: Callable[..., Any],
    opset_version: int,
) -> ir.Function:
    """Return the function `identifier`, traced from `body(op, *inputs)`.

    Args:
        identifier: Domain and name of the operator.
        inputs: Names of the formal inputs, in the order of the operator's schema.
        outputs: Names of the formal outputs, in the order of the operator's schema.
        attributes: The operator's attributes that the body reads, with their defaults.
        body: Called once with an `OpBuilder` and one value per input; returns one value per output.
        opset_version: Version of the standard operators, that of the model.

    Raises:
        ValueError: If `opset_version` is older than `OLDEST_OPSET`.
    """
    domain, name = identifier
    if opset_version < OLDEST_OPSET:
        raise ValueError(
            f"The body of {domain}::{name} needs opset {OLDEST_OPSET} or later, "
            f"found opset {opset_version}."
        )
    function = build_function(
        body,
        [ir.Value(name=value) for value in inputs],
        domain=domain,
        name=name,
        attributes=list(attributes),
        opset_imports={"": opset_version},
    )
    for value, output in zip(function.outputs, outputs, strict=True):
        value.name = output
    taken = {*inputs, *outputs}
    for node in all_nodes(function):
        # The builder notes its scopes, and that it could not infer untyped formal inputs.
        node.metadata_props.clear()
        # It numbers each subgraph from the start; ONNX's data propagation wants names that no
        # other branch has.
        for value in node.outputs:
            if value.name not in outputs:
                value.name = unique_name(str(value.name), taken)
    return function


def float_attribute(op: OpBuilder, name: str) -> Any:
    """Return the function's float attribute `name` as a float32 scalar."""
    return op.Constant(value_float=ir.RefAttr("value_float", name, ir.AttributeType.FLOAT))


def int_attribute(op: OpBuilder, name: str) -> Any:
    """Return the function's integer attribute `name` as an int64 scalar."""
    return op.Constant(value_int=ir.RefAttr("value_int", name, ir.AttributeType.INT))


def ref_float(name: str, attribute: str) -> ir.Attr:
    """Return a node attribute `name` that takes the value of the function's `attribute`."""
    return ir.RefAttr(name, attribute, ir.AttributeType.FLOAT)


def mean_of_last_axis(op: OpBuilder, x: ir.Value, opset_version: int) -> Any:
    """Return the mean over the last axis, kept as 1; `axes` became an input in opset 18."""
    if opset_version < 18:
        return op.ReduceMean(x, axes=[-1], keepdims=1)
    return op.ReduceMean(x, op.Constant(value_ints=[-1]), keepdims=1)


def root_of_mean_square(op: OpBuilder, x: ir.Value, opset_version: int) -> Any:
    """Return `sqrt(mean(x^2) + epsilon)` over the last axis, epsilon the function's attribute."""
    mean_square = mean_of_last_axis(op, op.Mul(x, x), opset_version)
    return op.Sqrt(op.Add(mean_square, float_attribute(op, "epsilon")))


class Integers:
    """The int64 constants of one body: each is made once, however often it is asked for."""

    def __init__(self, op: OpBuilder) -> None:
        """Make constants on `op`."""
        self._op = op
        self._scalars: dict[int, Any] = {}
        self._vectors: dict[tuple[int, ...], Any] = {}

    def scalar(self, number: int) -> Any:
        """Return a constant without axes."""
        if number not in self._scalars:
            self._scalars[number] = self._op.Constant(value_int=number)
        return self._scalars[number]

    def vector(self, *numbers: int) -> Any:
        """Return a constant with one axis."""
        if numbers not in self._vectors:
            self._vectors[numbers] = self._op.Constant(value_ints=list(numbers))
        return self._vectors[numbers]
