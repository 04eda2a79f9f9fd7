"""`each_token`: a recurrence over tokens as one `Loop` that carries its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

Step = Callable[[OpBuilder, Mapping[str, Any], Any], tuple[Any, Any]]
"""Builder, what a token brings, the state before -> the state after, and the token's output."""


def each_token(
    op: OpBuilder, tokens: Mapping[str, Any], state: Any, step: Step, *, rank: int
) -> tuple[Any, Any]:
    """Return the state after all tokens, and their outputs, `[T, ...]`.

    Args:
        op: Builder.
        tokens: What tokens bring, by name, `[T, ...]` each.
        state: The state before the first token, float32, of as many axes as an output.
        step: What a token does.
        rank: Axes of the state, and of one token's output.
    """
    scalar = ir.Shape([])
    index = ir.Value(name="token", type=ir.TensorType(ir.DataType.INT64), shape=scalar)
    going = ir.Value(name="going", type=ir.TensorType(ir.DataType.BOOL), shape=scalar)
    carried = ir.Value(
        name="state", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([None] * rank)
    )

    def body(inner: OpBuilder, token: Any, keep_going: Any, before: Any) -> Any:
        here = {name: inner.Gather(value, token, axis=0) for name, value in tokens.items()}
        after, output = step(inner, here, before)
        return inner.Identity(keep_going), after, output

    outputs = [
        ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([None] * axes))
        for name, dtype, axes in (
            ("still_going", ir.DataType.BOOL, 0),
            ("next_state", ir.DataType.FLOAT, rank),
            ("output", ir.DataType.FLOAT, rank),
        )
    ]
    graph = op.builder.subgraph(body, [index, going, carried], outputs, name="each_token")
    first = next(iter(tokens.values()))
    count = op.Squeeze(op.Shape(first, start=0, end=1))
    last, stacked = op.Loop(
        count, op.Constant(value=ir.tensor(True)), state, body=graph, _outputs=2
    )
    last.type = stacked.type = ir.TensorType(ir.DataType.FLOAT)
    return last, stacked


def unstacked(op: OpBuilder, stacked: Any, like: Any, axes: int) -> Any:
    """Return what a loop stacked with its axes apart, the last one found from the others.

    A loop stacks what it scans; ONNX's reference evaluator (1.23) joins it along axis 0.

    Args:
        op: Builder.
        stacked: Outputs of all tokens.
        like: A value whose first `axes` axes are those of the outputs.
        axes: How many.
    """
    shape = op.Concat(op.Shape(like, end=axes), op.Constant(value_ints=[-1]), axis=0)
    return op.Reshape(stacked, shape)
