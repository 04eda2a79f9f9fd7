"""A shape vector on the graph in -> its entries: numbers, named sizes, or axes of a value.

Exporters write `Reshape(x, Concat(Shape(x)[0:1], [-1], ...))`. Two entries that are equal here are
equal at run time: the same number, the same named dimension, or the same axis of the same value.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from mobius_ir_rules.passes.constants import constant_ints
from mobius_ir_rules.values import input_at

Entry = int | str | tuple[ir.Value, int]

_DEPTH = 12


def dims(value: ir.Value | None) -> list[Entry] | None:
    """Return the sizes of the value's axes, `None` where the rank is not known."""
    if value is None or value.shape is None:
        return None
    return [_entry(value, axis) for axis in range(len(value.shape))]


def entries(value: ir.Value | None, depth: int = _DEPTH) -> list[Entry] | None:
    """Return the elements of an integer vector (or scalar), `None` where one is not known."""
    if value is None or depth == 0:
        return None
    constant = constant_ints(value)
    if constant is not None:
        return list(constant)
    node = value.producer()
    if node is None or node.domain or any(attr.is_ref() for attr in node.attributes.values()):
        return None
    match node.op_type:
        case "Shape":
            sizes = dims(input_at(node, 0))
            if sizes is None:
                return None
            end = node.attributes.get_int("end", len(sizes))
            return sizes[node.attributes.get_int("start", 0) : end]
        case "Concat":
            parts = [entries(part, depth - 1) for part in node.inputs]
            return [item for part in parts for item in part or ()] if None not in parts else None
        case "Slice":
            return _slice(node, depth)
        case "Gather":
            source, index = entries(input_at(node, 0), depth - 1), constant_ints(input_at(node, 1))
            if source is None or index is None:
                return None
            inside = all(-len(source) <= item < len(source) for item in index)
            return [source[item] for item in index] if inside else None
        case "Squeeze" | "Unsqueeze" | "Identity":
            # Vectors and scalars have the same elements; nothing here has more axes.
            return entries(input_at(node, 0), depth - 1)
        case "Cast":
            integer = node.attributes.get_int("to", 0) == ir.DataType.INT64
            return entries(input_at(node, 0), depth - 1) if integer else None
        case "Reshape":
            single = entries(input_at(node, 0), depth - 1)
            return single if single is not None and len(single) == 1 else None
    return None


def reshape_target(node: ir.Node, source: Sequence[Entry]) -> list[Entry] | None:
    """Return the shape that a Reshape asks for, zeros replaced by sizes of `source`; -1 stays."""
    wanted = entries(input_at(node, 1))
    if wanted is None:
        return None
    if node.attributes.get_int("allowzero", 0):
        return None if 0 in wanted else wanted
    if any(item == 0 and axis >= len(source) for axis, item in enumerate(wanted)):
        return None
    return [source[axis] if item == 0 else item for axis, item in enumerate(wanted)]


def _entry(value: ir.Value, axis: int) -> Entry:
    assert value.shape is not None
    dim = value.shape[axis]
    if isinstance(dim, int):
        return dim
    return (value, axis) if dim.value is None else str(dim.value)


def _slice(node: ir.Node, depth: int) -> list[Entry] | None:
    source = entries(input_at(node, 0), depth - 1)
    starts, ends = constant_ints(input_at(node, 1)), constant_ints(input_at(node, 2))
    axes, steps = input_at(node, 3), input_at(node, 4)
    if source is None or starts is None or ends is None or len(starts) != 1 or len(ends) != 1:
        return None
    if axes is not None and constant_ints(axes) not in ([0], [-1]):
        return None
    if steps is not None and constant_ints(steps) != [1]:
        return None
    return source[starts[0] : ends[0]]
