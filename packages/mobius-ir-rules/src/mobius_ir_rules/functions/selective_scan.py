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
once they would be `size` times as large as the activations.
Source: https://arxiv.org/abs/2312.00752, `transformers` `mamba_selective_scan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.body import make_function
from mobius_ir_rules.functions.token_loop import each_token, unstacked

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
        "time_step": op.Unsqueeze(_tokens_first(op, time_step), column),
        "value": op.Unsqueeze(_tokens_first(op, op.Mul(time_step, x)), column),
        "write": op.Unsqueeze(_tokens_first(op, write), row),
        "read": op.Unsqueeze(_tokens_first(op, read), column),
    }

    def step(inner: OpBuilder, token: Mapping[str, Any], state: Any) -> tuple[Any, Any]:
        kept = inner.Mul(inner.Exp(inner.Mul(token["time_step"], decay)), state)
        state = inner.Add(kept, inner.Mul(token["value"], token["write"]))
        return state, inner.MatMul(state, token["read"])

    last, stacked = each_token(op, tokens, past, step, rank=3)
    y = unstacked(op, stacked, tokens["value"], 2)  # [T, B, channels]
    return op.Transpose(y, perm=[1, 0, 2]), last


def _tokens_first(op: OpBuilder, x: Any) -> Any:
    return op.Transpose(x, perm=[1, 0, 2])
