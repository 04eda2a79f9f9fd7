"""RecurrenceFusion: what channels carry from token to token -> `com.microsoft::LinearAttention`.

For targets where a loop over tokens is driven from the CPU, a launch for each node of each token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext, RewriteRule

from mobius_ir_rules.functions.gated_recurrence import GATED_RECURRENCE
from mobius_ir_rules.functions.linear_attention import LINEAR_ATTENTION
from mobius_ir_rules.functions.selective_scan import SELECTIVE_SCAN
from mobius_ir_rules.rule import Plan, Rule, refuse, standard
from mobius_ir_rules.values import (
    Declaration,
    describe_node,
    input_at,
    like,
    make,
    make_all,
    make_int64s,
    output_at,
    static_dim,
)

_FLOAT = ir.DataType.FLOAT
Dim = int | str | ir.SymbolicDim | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _RecurrencePlan(Plan):
    x: ir.Value
    past: ir.Value
    channels: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ScanPlan(_RecurrencePlan):
    size: int


class SelectiveScanToLinearAttention(Rule):
    """Let every channel be a head of one value, with a decay for each element of its state.

    Before:

        y, present = mobius.recurrence.SelectiveScan (x, time_step, decay, write, read, past)

    After, with `D` channels of `N` numbers:

        step = Unsqueeze (time_step, [3])
        key = Reshape (Mul (step, Unsqueeze (write, [2])), [0, 0, D * N])
        log = Reshape (Mul (step, decay), [0, 0, D * N])
        y, state = com.microsoft.LinearAttention <q_num_heads = 1, kv_num_heads = D,
            update_rule = "gated", scale = 1.0> (read, key, x, Unsqueeze (past, [3]), log)
        present = Squeeze (state, [3])

    `D` and `N` are known, all inputs float32. Keys and decays are `N` times as large as `x`.
    """

    roots = (SELECTIVE_SCAN,)
    emits = (LINEAR_ATTENTION, *standard("Constant", "Mul", "Reshape", "Squeeze", "Unsqueeze"))

    def plan(self, node: ir.Node) -> _ScanPlan:
        """Return what to do with the scan."""
        x, past, channels = _read(node, inputs=6)
        size = static_dim(input_at(node, 2), 1)
        if size is None:
            refuse(
                f"The size of a channel's state of {describe_node(node)}, the last axis of "
                "'decay', is not known; a static one is needed.",
                node,
            )
        return _ScanPlan(
            root=node, replaced=_outputs(node), x=x, past=past, channels=channels, size=size
        )

    def emit(self, op: RewriterContext, plan: _ScanPlan) -> Sequence[ir.Value]:
        """Make keys, decays and the operator."""
        _, step, decay, write, read, _ = plan.root.inputs
        batch, length, _ = _axes(plan.x)
        wide = plan.channels * plan.size
        grid = (_FLOAT, [batch, length, plan.channels, plan.size])
        column = (_FLOAT, [batch, length, plan.channels, 1])
        row = (_FLOAT, [batch, length, 1, plan.size])
        steps = make(op, "Unsqueeze", [step, make_int64s(op, [3])], column)
        writes = make(op, "Unsqueeze", [write, make_int64s(op, [2])], row)
        key, log = (
            make(
                op,
                "Reshape",
                [make(op, "Mul", [steps, other], grid), make_int64s(op, [0, 0, wide])],
                (_FLOAT, [batch, length, wide]),
            )
            for other in (writes, decay)
        )
        return _attend(op, plan, (read, key, log), (batch, plan.channels, plan.size))


class GatedRecurrenceToLinearAttention(Rule):
    """Let every channel be a head with one key and one value.

    Before:

        y, present = mobius.recurrence.GatedRecurrence (x, decay, past)

    After, with `D` channels:

        one = Clip (Slice (x, [0], [1], [2]), 1.0, 1.0)
        y, state = com.microsoft.LinearAttention <q_num_heads = 1, kv_num_heads = D,
            update_rule = "gated", scale = 1.0> (one, one, x, Unsqueeze (past, [2, 3]), decay)
        present = Squeeze (state, [2, 3])

    `D` is known, all inputs float32. A key serves all heads.
    """

    roots = (GATED_RECURRENCE,)
    emits = (
        LINEAR_ATTENTION,
        *standard("Clip", "Constant", "Slice", "Squeeze", "Unsqueeze"),
    )

    def plan(self, node: ir.Node) -> _RecurrencePlan:
        """Return what to do with the recurrence."""
        x, past, channels = _read(node, inputs=3)
        return _RecurrencePlan(
            root=node, replaced=_outputs(node), x=x, past=past, channels=channels
        )

    def emit(self, op: RewriterContext, plan: _RecurrencePlan) -> Sequence[ir.Value]:
        """Make keys of one and the operator."""
        batch, length, _ = _axes(plan.x)
        column = (_FLOAT, [batch, length, 1])
        ends = [make_int64s(op, [each]) for each in (0, 1, 2)]
        unit = make(op, "Constant", [], (_FLOAT, []), attributes={"value": ir.tensor(1.0)})
        key = make(op, "Slice", [plan.x, *ends], column)
        key = make(op, "Clip", [key, unit, unit], column)
        return _attend(op, plan, (key, key, plan.root.inputs[1]), (batch, plan.channels))


def recurrence_rules() -> list[RewriteRule]:
    """Return the rules of this file, for `onnxscript.rewriter.rewrite`."""
    return [SelectiveScanToLinearAttention(), GatedRecurrenceToLinearAttention()]


def _read(node: ir.Node, *, inputs: int) -> tuple[ir.Value, ir.Value, int]:
    """Return `x`, the state before, and the number of channels."""
    given = [value for value in node.inputs if value is not None]
    if not len(given) == len(node.inputs) == inputs:
        refuse(f"{describe_node(node)} has {len(given)} inputs; {inputs} are needed.", node)
    types = {value.dtype for value in given}
    if types != {_FLOAT}:
        found = ", ".join(sorted(str(each) for each in types))
        reason = f"The inputs of {describe_node(node)} have the types {found}; FLOAT is needed."
        refuse(reason, node)
    channels = static_dim(given[0], 2)
    if channels is None:
        refuse(
            f"The number of channels of {describe_node(node)}, the last axis of 'x', is not known; "
            "a static one is needed.",
            node,
        )
    return given[0], given[-1], channels


def _outputs(node: ir.Node) -> tuple[ir.Value, ...]:
    return tuple(value for index in (0, 1) if (value := output_at(node, index)) is not None)


def _axes(x: ir.Value) -> Sequence[Dim]:
    assert x.shape is not None  # the number of channels is known
    return list(x.shape)


def _attend(
    op: RewriterContext,
    plan: _RecurrencePlan,
    operands: tuple[ir.Value | None, ir.Value, ir.Value | None],
    state: tuple[Dim, ...],
) -> list[ir.Value]:
    """Make the operator around a state that lacks the last of its four axes.

    Args:
        op: Where nodes are made.
        plan: What to do.
        operands: Queries, keys and decays.
        state: Shape of the state, without axes of one.
    """
    query, key, decay = operands
    axes = make_int64s(op, list(range(len(state), 4)))
    full: Declaration = (_FLOAT, [*state, *[1] * (4 - len(state))])
    y, after = make_all(
        op,
        LINEAR_ATTENTION[1],
        [query, key, plan.x, make(op, "Unsqueeze", [plan.past, axes], full), decay],
        like(plan.x),
        full,
        domain=LINEAR_ATTENTION[0],
        attributes={
            "q_num_heads": 1,
            "kv_num_heads": plan.channels,
            "update_rule": "gated",
            "scale": 1.0,
        },
        name=plan.root.name,
    )
    y_before, present = (output_at(plan.root, index) for index in (0, 1))
    results = [] if y_before is None else [y]
    if present is not None:
        results.append(make(op, "Squeeze", [after, axes], like(plan.past)))
    return results
