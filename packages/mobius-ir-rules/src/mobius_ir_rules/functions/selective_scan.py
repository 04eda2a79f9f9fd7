"""Body of `mobius.recurrence::SelectiveScan`: a state for each channel, as Mamba has it.

    y, present = SelectiveScan(x, time_step, decay, write, read, past)

Components say with one call what is computed; a rule may take another operator where the target
has one that is faster there (`mobius_ir_rules.fusion.recurrence`), everyone else inlines the body.
No built graph leaves with this domain.

`x` and `time_step` are `[B, T, channels]`, `decay` `[channels, size]`, `write` and `read`
`[B, T, size]`, the states `[B, channels, size]`, all float32. For each token in turn and each
channel `d`, element by element over `size`:

    state[d] = exp(time_step[d] * decay[d]) * state[d] + time_step[d] * x[d] * write
    y[d] = sum(state[d] * read)

A token with time step 0 changes nothing.

**Form.** One `Loop` over tokens, in which decays are computed as they are needed: for all tokens at
once they would be `size` times as large as the activations. It carries `[B, size, channels]`: rows
of a few numbers are what elementwise kernels are slow at. A decay for each element of the state
leaves no product of matrices for chunks of tokens. Milliseconds of CPU time for 1, 128 and 1,024
tokens of 1,536 channels of 16, one core, ONNX Runtime 1.32: 0.06, 3.3, 28; carrying `[B, channels,
size]` 0.07, 7.4, 59.
Source: https://arxiv.org/abs/2312.00752, `transformers` `mamba_selective_scan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.body import make_function
from mobius_ir_rules.functions.token_loop import each_part, unstacked

DOMAIN = "mobius.recurrence"
SELECTIVE_SCAN = (DOMAIN, "SelectiveScan")

_INPUTS = ("x", "time_step", "decay", "write", "read", "past")


def selective_scan(opset_version: int) -> ir.Function:
    """Return the body of SelectiveScan for `opset_version`."""
    return make_function(SELECTIVE_SCAN, _INPUTS, ("y", "present"), [], _scan, opset_version)


def _scan(
    op: OpBuilder,
    x: ir.Value,
    time_step: ir.Value,
    decay: ir.Value,
    write: ir.Value,
    read: ir.Value,
    past: ir.Value,
) -> tuple[Any, Any]:
    row, column = op.Constant(value_ints=[2]), op.Constant(value_ints=[3])
    tokens = {
        "time_step": op.Unsqueeze(_tokens_first(op, time_step), row),
        "value": op.Unsqueeze(_tokens_first(op, op.Mul(time_step, x)), row),
        "write": op.Unsqueeze(_tokens_first(op, write), column),
        "read": op.Unsqueeze(_tokens_first(op, read), row),
    }
    of_rows = op.Transpose(decay, perm=[1, 0])

    def step(inner: OpBuilder, token: Mapping[str, Any], state: Any) -> tuple[Any, Any]:
        kept = inner.Mul(inner.Exp(inner.Mul(token["time_step"], of_rows)), state)
        state = inner.Add(kept, inner.Mul(token["write"], token["value"]))
        return state, inner.MatMul(token["read"], state)

    last, stacked = each_part(op, tokens, op.Transpose(past, perm=[0, 2, 1]), step, rank=3)
    y = op.Squeeze(unstacked(op, stacked, tokens["value"], 3), row)  # [T, B, channels]
    return op.Transpose(y, perm=[1, 0, 2]), op.Transpose(last, perm=[0, 2, 1])


def _tokens_first(op: OpBuilder, x: Any) -> Any:
    return op.Transpose(x, perm=[1, 0, 2])
