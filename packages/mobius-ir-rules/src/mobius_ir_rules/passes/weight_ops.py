"""What `FoldWeights` folds: a node and its sources' expressions -> its outputs' expressions.

One function an operator, as the standard defines it at opset 13 and later. Where an argument is
not a constant, or the form is an older one, the answer is None and the node stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from mobius_ir_rules.expressions import (
    Cast,
    Concat,
    Expression,
    Reshape,
    Slice,
    Transpose,
    can_cast,
)
from mobius_ir_rules.passes.constants import constant_ints

Expressions = list[Expression]


def fold_node(node: ir.Node, sources: Sequence[Expression]) -> Expressions | None:
    """Return an expression for each output of `node`, whose operator is in `FOLDABLE`.

    Args:
        node: The node.
        sources: All inputs of a Concat; of other operators the first, the rest are arguments.
    """
    results = FOLDABLE[node.op_type](node, sources)
    return results if results is not None and len(results) == len(node.outputs) else None


def _transpose(node: ir.Node, sources: Sequence[Expression]) -> Expressions | None:
    (source,) = sources
    default = range(len(source.shape))[::-1]
    return [Transpose(source, tuple(node.attributes.get_ints("perm", default)))]


def _concat(node: ir.Node, sources: Sequence[Expression]) -> Expressions | None:
    if len({source.dtype for source in sources}) != 1:
        return None
    axis = node.attributes["axis"].as_int() % len(sources[0].shape)
    return [Concat(tuple(sources), axis)]


def _cast(node: ir.Node, sources: Sequence[Expression]) -> Expressions | None:
    (source,) = sources
    target = ir.DataType(node.attributes["to"].as_int())
    if target == source.dtype:
        return [source]
    return [Cast(source, target)] if can_cast(source.dtype, target) else None


def _reshape(node: ir.Node, sources: Sequence[Expression]) -> Expressions | None:
    (source,) = sources
    shape = _ints(node, 1)
    if shape is None:
        return None
    if not node.attributes.get_int("allowzero", 0):
        shape = [dim or source.shape[axis] for axis, dim in enumerate(shape)]
    if -1 in shape:
        known = -math.prod(shape)
        if known == 0:
            return None
        shape[shape.index(-1)] = math.prod(source.shape) // known
    return [Reshape(source, tuple(shape))]


def _squeeze(node: ir.Node, sources: Sequence[Expression]) -> Expressions | None:
    (source,) = sources
    rank = len(source.shape)
    if len(node.inputs) > 1:
        axes = _ints(node, 1)
    elif "axes" in node.attributes:
        return None
    else:
        axes = [axis for axis, dim in enumerate(source.shape) if dim == 1]
    if axes is None:
        return None
    dropped = {axis % rank for axis in axes}
    shape = [dim for axis, dim in enumerate(source.shape) if axis not in dropped]
    return [Reshape(source, tuple(shape))]


def _unsqueeze(node: ir.Node, sources: Sequence[Expression]) -> Expressions | None:
    (source,) = sources
    axes = _ints(node, 1)
    if axes is None:
        return None
    rank = len(source.shape) + len(axes)
    added = {axis % rank for axis in axes}
    dims = iter(source.shape)
    return [Reshape(source, tuple(1 if axis in added else next(dims) for axis in range(rank)))]


def _slice(node: ir.Node, sources: Sequence[Expression]) -> Expressions | None:
    (source,) = sources
    rank = len(source.shape)
    starts, ends = _ints(node, 1), _ints(node, 2)
    if starts is None or ends is None:
        return None
    axes = _ints(node, 3, list(range(len(starts))))
    steps = _ints(node, 4, [1] * len(starts))
    if axes is None or steps is None:
        return None
    slices = [slice(None)] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        # Python clamps as ONNX does, INT64_MAX and INT64_MIN included.
        slices[axis % rank] = slice(start, end, step)
    return [Slice(source, tuple(slices))]


def _split(node: ir.Node, sources: Sequence[Expression]) -> Expressions | None:
    (source,) = sources
    axis = node.attributes.get_int("axis", 0) % len(source.shape)
    if "split" in node.attributes:
        return None
    total, count = source.shape[axis], len(node.outputs)
    equal = -(-total // count)
    sizes = _ints(node, 1, [min(equal, total - equal * index) for index in range(count)])
    if sizes is None or len(sizes) != count or sum(sizes) != total:
        return None
    before, results, start = (slice(None),) * axis, [], 0
    after = (slice(None),) * (len(source.shape) - axis - 1)
    for size in sizes:
        results.append(Slice(source, (*before, slice(start, start + size), *after)))
        start += size
    return list[Expression](results)


def _ints(node: ir.Node, index: int, default: list[int] | None = None) -> list[int] | None:
    """Return the constant integers of an input; `default` if the input is omitted."""
    value = node.inputs[index] if index < len(node.inputs) else None
    return default if value is None else constant_ints(value)


FOLDABLE: Mapping[str, Callable[[ir.Node, Sequence[Expression]], Expressions | None]] = {
    "Transpose": _transpose,
    "Concat": _concat,
    "Cast": _cast,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Split": _split,
}
