"""A quotient on the graph in -> what it normalises, or `None`: both norms' common part.

`n / sqrt(mean(n * n) + epsilon)`, however it is written: Pow or Mul, Div or Reciprocal or a power
of -0.5. With `n = x - mean(x)` it is the middle of a layer norm, otherwise of an RMS norm.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from mobius_ir_rules.fusion.polynomial import scalar
from mobius_ir_rules.passes.constants import constant_ints
from mobius_ir_rules.rule import refuse
from mobius_ir_rules.values import (
    describe_node,
    input_at,
    int_attribute,
    is_binary,
    producer_of,
    rank,
    static_dim,
)


@dataclasses.dataclass(frozen=True)
class Normalized:
    """A normalised value.

    Attributes:
        x: What is normalised; before the mean is subtracted where `centred`.
        centred: Whether the mean is subtracted first.
        epsilon: The value that is added to the mean square; `None` where it is no constant.
        means: The ReduceMean nodes.
        nodes: All nodes, the last one first.
    """

    x: ir.Value
    centred: bool
    epsilon: float | None
    means: tuple[ir.Node, ...]
    nodes: tuple[ir.Node, ...]


def normalized(value: ir.Value | None) -> Normalized | None:
    """Return what `value` normalises, `None` where it is no such quotient."""
    for numerator, root, last in _quotients(value):
        radicand, power = _radicand(root)
        total = producer_of(radicand, "", "Add")
        if total is None or not is_binary(total):
            continue
        for index in (0, 1):
            mean = producer_of(total.inputs[index], "", "ReduceMean")
            square = _square(mean, numerator) if mean is not None else None
            if mean is None or square is None:
                continue
            nodes = [*last, *power, total, mean, square]
            x, centring = _centred(numerator)
            means = (mean, centring[1]) if centring else (mean,)
            return Normalized(
                x,
                bool(centring),
                scalar(total.inputs[1 - index]),
                means,
                (*nodes, *centring),
            )
    return None


def require_last_axis(found: Normalized) -> float:
    """Return epsilon; prove that all means are over the last axis alone, which is kept.

    Raises:
        RefusedError: Where that is not proved.
    """
    for mean in found.means:
        axes = _axes(mean)
        width = rank(input_at(mean, 0))
        last = (-1,) if width is None else (-1, width - 1)
        if axes is None or len(axes) != 1 or axes[0] not in last:
            refuse(
                f"{describe_node(mean)} has the axes {axes if axes else 'unknown'} on rank "
                f"{width or 'unknown'}; the last axis alone is needed.",
                mean,
            )
        if int_attribute(mean, "keepdims", 1) != 1:
            refuse(f"{describe_node(mean)} has keepdims=0; keepdims=1 is needed.", mean)
    if found.epsilon is None or found.epsilon < 0.0:
        number = "no constant" if found.epsilon is None else f"{found.epsilon:g}"
        refuse(
            f"The number added to the result of {describe_node(found.means[0])} is {number}; a "
            "constant scalar of at least 0 is needed.",
            found.means[0],
        )
    return found.epsilon


def require_hidden(value: ir.Value | None, what: str, x: ir.Value, node: ir.Node) -> None:
    """Refuse unless the value is `[hidden]`, `hidden` being the last size of `x`.

    Raises:
        RefusedError: Where it is not provably so.
    """
    hidden = static_dim(x, -1)
    shape = None if value is None else value.shape
    if hidden is None:
        refuse(
            f"The last size of the value that {describe_node(node)} ends the normalisation of is "
            "not known; it is needed.",
            node,
        )
    if shape is None or len(shape) != 1 or shape[0] != hidden:
        found = "unknown" if shape is None else f"{shape}"
        refuse(
            f"The {what} of {describe_node(node)} has the shape {found}; [{hidden}] is needed.",
            node,
        )


def require_opset(node: ir.Node, operator: str, oldest: int) -> None:
    """Refuse where the graph's opset has no such operator.

    Raises:
        RefusedError: Where the opset is unknown or too old.
    """
    version = node.graph.opset_imports.get("") if node.graph is not None else None
    if version is None or version < oldest:
        refuse(
            f"The graph of {describe_node(node)} imports opset {version or 'unknown'} of ONNX; "
            f"{operator} exists from opset {oldest} on.",
            node,
        )


def through_cast(value: ir.Value | None) -> tuple[ir.Value | None, tuple[ir.Node, ...]]:
    """Return what a Cast reads and the Cast, or the value itself."""
    cast = producer_of(value, "", "Cast")
    return (value, ()) if cast is None else (input_at(cast, 0), (cast,))


def _quotients(
    value: ir.Value | None,
) -> list[tuple[ir.Value, ir.Value, tuple[ir.Node, ...]]]:
    """Return (numerator, value of a square root or power, nodes) of each reading of `value`."""
    node = value.producer() if value is not None else None
    if node is None or node.domain or not is_binary(node):
        return []
    left, right = node.inputs
    assert left is not None
    assert right is not None
    if node.op_type == "Div":
        return [(left, right, (node,))] if _is_root(right, 0.5) else []
    if node.op_type != "Mul":
        return []
    found: list[tuple[ir.Value, ir.Value, tuple[ir.Node, ...]]] = []
    for numerator, inverse in ((left, right), (right, left)):
        if _is_root(inverse, -0.5):
            found.append((numerator, inverse, (node,)))
            continue
        reciprocal = producer_of(inverse, "", "Reciprocal")
        division = producer_of(inverse, "", "Div")
        if reciprocal is not None and (root := input_at(reciprocal, 0)) is not None:
            if _is_root(root, 0.5):
                found.append((numerator, root, (node, reciprocal)))
        elif (
            division is not None
            and scalar(input_at(division, 0)) == 1.0
            and (root := input_at(division, 1)) is not None
            and _is_root(root, 0.5)
        ):
            found.append((numerator, root, (node, division)))
    return found


def _is_root(value: ir.Value, exponent: float) -> bool:
    power = producer_of(value, "", "Pow")
    if power is not None and scalar(input_at(power, 1)) == exponent:
        return True
    return exponent == 0.5 and producer_of(value, "", "Sqrt") is not None


def _radicand(root: ir.Value) -> tuple[ir.Value | None, tuple[ir.Node, ...]]:
    node = root.producer()
    assert node is not None
    return input_at(node, 0), (node,)


def _square(mean: ir.Node, numerator: ir.Value) -> ir.Node | None:
    """Return the node that squares `numerator` for the mean."""
    value = input_at(mean, 0)
    node = value.producer() if value is not None else None
    if node is None or node.domain or not is_binary(node):
        return None
    base, other = node.inputs
    if not _same(base, numerator):
        return None
    if node.op_type == "Pow":
        return node if scalar(other) == 2.0 else None
    return node if node.op_type == "Mul" and other is base else None


def _centred(value: ir.Value) -> tuple[ir.Value, tuple[ir.Node, ...]]:
    """Return x and (Sub, ReduceMean) where the value is `x - mean(x)`; else the value."""
    difference = producer_of(value, "", "Sub")
    if difference is None or not is_binary(difference):
        return value, ()
    x = difference.inputs[0]
    mean = producer_of(difference.inputs[1], "", "ReduceMean")
    if mean is None or x is None or input_at(mean, 0) is not x:
        return value, ()
    return x, (difference, mean)


def _same(left: ir.Value | None, right: ir.Value | None) -> bool:
    """Return whether both are one value, or two equal differences."""
    if left is right:
        return left is not None
    first, second = producer_of(left, "", "Sub"), producer_of(right, "", "Sub")
    return first is not None and second is not None and list(first.inputs) == list(second.inputs)


def _axes(mean: ir.Node) -> tuple[int, ...] | None:
    attribute = mean.attributes.get("axes")
    if attribute is not None:
        return None if attribute.is_ref() else tuple(attribute.as_ints())
    found = constant_ints(input_at(mean, 1))
    return None if found is None else tuple(found)
