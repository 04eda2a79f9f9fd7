"""Body of `mobius.recurrence::GatedRecurrence`: one number as state for each channel.

    y, present = GatedRecurrence(x, decay, past)

`x` and `decay` are `[B, T, channels]`, the states `[B, channels]`, all float32; `decay` is in log
space. For each token in turn:

    state = exp(decay) * state + x
    y = state

**Form.** One `Loop` over tokens. Milliseconds of CPU time for 1, 128 and 1,024 tokens of 2,560
channels, one core, ONNX Runtime 1.32: 0.02, 0.7, 8.3; within all chunks of 16 tokens at once, and
then from chunk to chunk, which reads and writes more: 0.04, 0.8, 11.8.

As `mobius.recurrence::SelectiveScan`: rules recognise the operator, everyone else inlines the body,
and no built graph leaves with this domain.
Source: https://arxiv.org/abs/2402.19427, `transformers` `RecurrentGemmaRglru`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.body import make_function
from mobius_ir_rules.functions.selective_scan import DOMAIN
from mobius_ir_rules.functions.token_loop import each_part, unstacked

GATED_RECURRENCE = (DOMAIN, "GatedRecurrence")


def gated_recurrence(opset_version: int) -> ir.Function:
    """Return the body of GatedRecurrence for `opset_version`."""
    inputs = ("x", "decay", "past")
    return make_function(GATED_RECURRENCE, inputs, ("y", "present"), [], _accumulate, opset_version)


def _accumulate(op: OpBuilder, x: ir.Value, decay: ir.Value, past: ir.Value) -> tuple[Any, Any]:
    tokens = {
        "value": op.Transpose(x, perm=[1, 0, 2]),
        "factor": op.Exp(op.Transpose(decay, perm=[1, 0, 2])),
    }

    def step(inner: OpBuilder, token: Mapping[str, Any], state: Any) -> tuple[Any, Any]:
        state = inner.Add(inner.Mul(token["factor"], state), token["value"])
        return state, inner.Identity(state)

    last, stacked = each_part(op, tokens, past, step, rank=2)
    y = unstacked(op, stacked, tokens["value"], 2)
    return op.Transpose(y, perm=[1, 0, 2]), last
