"""`each_part`: a recurrence over tokens, or chunks, as one `Loop` that carries its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

Step = Callable[[OpBuilder, Mapping[str, Any], Any], tuple[Any, ...]]
"""Builder, what a part brings, the state before -> the state after, and the part's outputs."""


def each_part(
    op: OpBuilder,
    parts: Mapping[str, Any],
    state: Any,
    step: Step,
    *,
    rank: int,
    name: str = "token",
) -> tuple[Any, Any]:
    """Return the state after all parts, and their outputs, `[parts, ...]`.

    Args:
        op: Builder.
        parts: What parts bring, by name, `[parts, ...]` each.
        state: The state before the first part, float32, of as many axes as an output.
        step: What a part does; it has one output.
        rank: Axes of the state, and of one part's output.
        name: What a part is.
    """
    first = next(iter(parts.values()))
    count = op.Squeeze(op.Shape(first, start=0, end=1))
    last, stacked = loop(op, count, parts, state, step, rank=rank, name=name, outputs=1)
    return last, stacked


def loop(
    op: OpBuilder,
    count: Any,
    parts: Mapping[str, Any],
    state: Any,
    step: Step,
    *,
    rank: int,
    name: str,
    outputs: int = 0,
) -> tuple[Any, ...]:
    """Return the state after `count` parts, and their outputs, `[parts, ...]`.

    Args:
        op: Builder.
        count: How many of the parts there are, an int64 scalar.
        parts: What parts bring, by name, `[at least count, ...]` each.
        state: The state before the first part, float32.
        step: What a part does.
        rank: Axes of the state, and of each output of one part.
        name: What a part is.
        outputs: How many outputs a part has.
    """
    scalar = ir.Shape([])
    index = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), shape=scalar)
    going = ir.Value(name=f"{name}_going", type=ir.TensorType(ir.DataType.BOOL), shape=scalar)
    carried = _floats(f"{name}_state", rank)

    def body(inner: OpBuilder, part: Any, keep_going: Any, before: Any) -> Any:
        here = {key: inner.Gather(value, part, axis=0) for key, value in parts.items()}
        return inner.Identity(keep_going), *step(inner, here, before)

    results = [
        ir.Value(name=f"{name}_goes_on", type=ir.TensorType(ir.DataType.BOOL), shape=scalar),
        _floats(f"{name}_next", rank),
        *(_floats(f"{name}_output_{number}", rank) for number in range(outputs)),
    ]
    graph = op.builder.subgraph(body, [index, going, carried], results, name=f"each_{name}")
    found = op.Loop(
        count, op.Constant(value=ir.tensor(True)), state, body=graph, _outputs=1 + outputs
    )
    values = tuple(found) if outputs else (found,)
    for value in values:
        value.type = ir.TensorType(ir.DataType.FLOAT)
    return values


def _floats(name: str, rank: int) -> ir.Value:
    shape = ir.Shape([None] * rank)
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=shape)


def unstacked(op: OpBuilder, stacked: Any, like: Any, axes: int) -> Any:
    """Return what a loop stacked with its axes apart, the last one found from the others.

    A loop stacks what it scans; ONNX's reference evaluator (1.23) joins it along axis 0.

    Args:
        op: Builder.
        stacked: Outputs of all parts.
        like: A value whose first `axes` axes are those of the outputs.
        axes: How many.
    """
    shape = op.Concat(op.Shape(like, end=axes), op.Constant(value_ints=[-1]), axis=0)
    return op.Reshape(stacked, shape)
