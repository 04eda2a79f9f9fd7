"""`eliminate_shape_rules()`: Shape, and what is picked from it -> constants; fewer Shapes to run.

For targets that run `Shape` badly: shapes live on the host, and reading one there stops a captured
graph or moves its neighbours to the CPU.

**Before** (x is `float[batch, 8, 64]`)

```
a = Shape <start = 1> (x)
b = Gather (Shape (x), 2)
y = Reshape (x, Concat (Gather (Shape (x), [0]), [2], [4], [64]))
```

**After**

```
a = Constant <value = [8, 64]> ()
b = Constant <value = 64> ()
y = Reshape (x, [0, 2, 4, 64])
```

What is sound: a size that the value's declared shape states. So `StaticShape` replaces a Shape
whose selected sizes are all known, and a Gather, Slice or Squeeze on a shape all of whose results
are. `CopiedDimensions` replaces the target of a Reshape where each unknown size is the input's own
size at the same index, which a 0 copies. All else is decided when the model runs and stays; no size
is guessed, and -1 is not used, because it fails on empty tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.passes.constants import constant_array, constant_ints
from mobius_ir_rules.rule import Plan, Rule, refuse
from mobius_ir_rules.values import (
    describe_node,
    describe_value,
    input_at,
    int_attribute,
    is_used,
    like,
    make,
    make_int64s,
)

_PICKER_IDS = (("", "Gather"), ("", "Slice"), ("", "Squeeze"), ("", "Unsqueeze"))


def eliminate_shape_rules() -> list[Rule]:
    """Return the rules of this module."""
    return [StaticShape(), CopiedDimensions()]


@dataclasses.dataclass(frozen=True)
class _Size:
    """One size of a shape: `known`, or that of `source` at `axis` when the model runs."""

    known: int | None
    source: ir.Value | None = None
    axis: int = 0


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """An integer tensor of sizes; `rank` 0 or 1, and the nodes that made it."""

    sizes: tuple[_Size, ...]
    rank: int
    nodes: tuple[ir.Node, ...] = ()

    def is_known(self) -> bool:
        return all(size.known is not None for size in self.sizes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ConstantPlan(Plan):
    numbers: tuple[int, ...]
    rank: int


class StaticShape(Rule):
    """Replace a Shape, or what is picked from it, whose sizes are all declared."""

    roots = (("", "Shape"), *_PICKER_IDS)
    emits = (("", "Constant"),)

    def plan(self, node: ir.Node) -> _ConstantPlan | None:
        """Read the sizes; a Shape with unknown ones is refused if they are needed as they are."""
        if not node.outputs:
            return None
        found = _read(node.outputs[0])
        if found is None and node.op_type == "Shape" and is_used(node.outputs[0]):
            refuse(
                f"{describe_node(node)} reads {describe_value(input_at(node, 0))}, of which not "
                "even the rank is known; sizes that are known when the model is built are needed.",
                node,
            )
        if found is None or not found.nodes or not is_used(node.outputs[0]):
            return None
        if _is_only_picked_from(node.outputs[0]):
            return None  # Where the last one picks, all of them go.
        if not found.is_known():
            if node.op_type == "Shape":
                _refuse_unknown(node, found)
            return None
        return _ConstantPlan(
            root=node,
            replaced=(node.outputs[0],),
            absorbed=found.nodes,
            numbers=tuple(size.known for size in found.sizes if size.known is not None),
            rank=found.rank,
        )

    def emit(self, op: RewriterContext, plan: _ConstantPlan) -> Sequence[ir.Value]:
        """Make the constant."""
        numbers = np.array(plan.numbers, np.int64).reshape((-1,) if plan.rank else ())
        tensor = ir.tensor(numbers, dtype=ir.DataType.INT64)
        declared = (ir.DataType.INT64, numbers.shape)
        return [
            make(op, "Constant", [], declared, attributes={"value": tensor}, name=plan.root.name)
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _CopyPlan(Plan):
    x: ir.Value
    target: tuple[int, ...]


class CopiedDimensions(Rule):
    """Copy the input's own sizes in a Reshape by 0 instead of reading them."""

    roots = (("", "Reshape"),)
    emits = (("", "Reshape"),)

    def plan(self, node: ir.Node) -> _CopyPlan | None:
        """Prove that each unknown size is the input's at the same index."""
        x, shape = input_at(node, 0), input_at(node, 1)
        found = _read(shape)
        if x is None or found is None or found.is_known() or int_attribute(node, "allowzero", 0):
            return None
        target = []
        for index, size in enumerate(found.sizes):
            if size.known is None:
                if size.source is not x or size.axis != index:
                    refuse(
                        f"Size {index} of the result of {describe_node(node)} is dimension "
                        f"{size.axis} of {describe_value(size.source)}; the size of its own "
                        f"input, {describe_value(x)}, at index {index} is needed.",
                        node,
                    )
                target.append(0)
            elif size.known == 0:
                return None
            else:
                target.append(size.known)
        return _CopyPlan(
            root=node,
            replaced=(node.outputs[0],),
            absorbed=found.nodes,
            x=x,
            target=tuple(target),
        )

    def emit(self, op: RewriterContext, plan: _CopyPlan) -> Sequence[ir.Value]:
        """Make the Reshape with a constant target."""
        target = make_int64s(op, plan.target)
        return [make(op, "Reshape", [plan.x, target], like(plan.replaced[0]), name=plan.root.name)]


def _is_only_picked_from(value: ir.Value) -> bool:
    """Return whether every reader picks known sizes, directly or not, so that it goes with them."""
    if value.is_graph_output() or not value.uses():
        return False
    for use in value.uses():
        node = use.node
        picked = _read(node.outputs[0]) if (node.domain, node.op_type) in _PICKER_IDS else None
        if picked is None or not (picked.is_known() or _is_only_picked_from(node.outputs[0])):
            return False
    return True


def _refuse_unknown(node: ir.Node, found: _Sizes) -> NoReturn:
    unknown = ", ".join(
        f"{size.axis} ({_dim_name(size)})" for size in found.sizes if size.known is None
    )
    source = found.nodes[-1].inputs[0]
    refuse(
        f"{describe_node(node)} reads the dimensions {unknown} of {describe_value(source)}; sizes "
        "that are known when the model is built are needed.",
        node,
    )


def _dim_name(size: _Size) -> str:
    assert size.source is not None
    assert size.source.shape is not None
    dim = size.source.shape[size.axis]
    name = dim if isinstance(dim, int) else dim.value
    return "unnamed" if name is None else f"'{name}'"


def _read(value: ir.Value | None) -> _Sizes | None:
    """Return the sizes that the value holds, `None` where it is made in another way."""
    node = value.producer() if value is not None else None
    if value is None or node is None or node.domain != "":
        return _constant(value)
    match node.op_type:
        case "Shape":
            return _shape(node)
        case "Gather":
            return _gather(node)
        case "Slice":
            return _slice(node)
        case "Squeeze":
            return _squeeze(node)
        case "Unsqueeze":
            return _unsqueeze(node)
        case "Concat":
            return _concat(node)
        case _:
            return _constant(value)


def _constant(value: ir.Value | None) -> _Sizes | None:
    array = constant_array(value)
    if array is None or array.dtype != np.int64 or array.ndim > 1:
        return None
    return _Sizes(tuple(_Size(int(number)) for number in array.reshape(-1)), array.ndim)


def _shape(node: ir.Node) -> _Sizes | None:
    x = input_at(node, 0)
    if x is None or x.shape is None:
        return None
    start, end = int_attribute(node, "start", 0), int_attribute(node, "end", len(x.shape))
    sizes = tuple(
        _Size(dim if isinstance(dim, int) else None, x, axis) for axis, dim in enumerate(x.shape)
    )
    return _Sizes(sizes[start:end], 1, (node,))


def _source(node: ir.Node) -> _Sizes | None:
    """Return the shape that the node picks from: a vector that a Shape made, directly or not."""
    found = _read(input_at(node, 0))
    return found if found is not None and found.nodes else None


def _gather(node: ir.Node) -> _Sizes | None:
    found, indices = _source(node), constant_array(input_at(node, 1))
    if found is None or found.rank != 1 or indices is None or indices.ndim > 1:
        return None
    if int_attribute(node, "axis", 0) not in (0, -1):
        return None
    numbers = [int(number) for number in indices.reshape(-1)]
    if not all(-len(found.sizes) <= number < len(found.sizes) for number in numbers):
        return None
    sizes = tuple(found.sizes[number] for number in numbers)
    return _Sizes(sizes, indices.ndim, (node, *found.nodes))


def _slice(node: ir.Node) -> _Sizes | None:
    found = _source(node)
    bounds = [constant_ints(input_at(node, index)) for index in (1, 2)]
    steps = [1] if input_at(node, 4) is None else constant_ints(input_at(node, 4))
    axes = [0] if input_at(node, 3) is None else constant_ints(input_at(node, 3))
    if found is None or found.rank != 1 or None in bounds or axes not in ([0], [-1]):
        return None
    starts, ends = bounds
    if steps != [1] or starts is None or ends is None or len(starts) != 1 or len(ends) != 1:
        return None
    return _Sizes(found.sizes[starts[0] : ends[0]], 1, (node, *found.nodes))


def _squeeze(node: ir.Node) -> _Sizes | None:
    # A vector of one number has one axis: it is the one that goes, named or not.
    found = _source(node)
    if found is None or found.rank != 1 or len(found.sizes) != 1:
        return None
    return _Sizes(found.sizes, 0, (node, *found.nodes))


def _unsqueeze(node: ir.Node) -> _Sizes | None:
    found = _source(node)
    if found is None or found.rank != 0 or constant_ints(input_at(node, 1)) not in ([0], [-1]):
        return None
    return _Sizes(found.sizes, 1, (node, *found.nodes))


def _concat(node: ir.Node) -> _Sizes | None:
    parts = [_read(value) for value in node.inputs]
    known = [part for part in parts if part is not None and part.rank == 1]
    if len(known) != len(parts) or int_attribute(node, "axis", 0) not in (0, -1):
        return None
    nodes = dict.fromkeys([node, *(inner for part in known for inner in part.nodes)])
    return _Sizes(tuple(size for part in known for size in part.sizes), 1, tuple(nodes))
