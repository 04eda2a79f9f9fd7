"""Body of `mobius.mask::BlockDiagonalMask`: lengths of packed sequences -> who sees whom.

    mask = BlockDiagonalMask(cu_seqlens, tokens)

`cu_seqlens` is integer `[sequences + 1]`: 0, then the running sum of the lengths, the last of which
is `N`, the number of tokens. `tokens` is any tensor with `N` at axis -2, such as the hidden states
`[1, N, hidden]` or `[N, hidden]`; only its shape is read. The result is bool `[N, N]`, true where
both tokens are of one sequence, to be given to `ai.onnx::Attention` as `attn_mask`.

As with the other operators of the domain (`mobius_ir_rules.functions.masks`), a component says
with one call what its mask *is*, rules recognise the call, everyone else inlines the body. The
contract that rules rely on: `cu_seqlens` ends with `N` and does not fall, so sequences are
contiguous, and a token sees its whole sequence and nothing else. Sequences may be empty.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.body import make_function
from mobius_ir_rules.functions.masks import DOMAIN

BLOCK_DIAGONAL_MASK = (DOMAIN, "BlockDiagonalMask")


def block_diagonal_mask(opset_version: int) -> ir.Function:
    """Return `BlockDiagonalMask(cu_seqlens, tokens) -> mask` for `opset_version`."""

    def body(op: OpBuilder, cu_seqlens: ir.Value, tokens: ir.Value) -> Any:
        return same_sequence(op, cu_seqlens, op.Shape(tokens, start=-2, end=-1))

    return make_function(
        BLOCK_DIAGONAL_MASK, ["cu_seqlens", "tokens"], ["mask"], [], body, opset_version
    )


def same_sequence(op: OpBuilder, cu_seqlens: ir.Value, count: Any) -> Any:
    """Return bool `[N, N]`: whether two tokens are of one sequence.

    Args:
        op: Where nodes are made.
        cu_seqlens: Integers `[sequences + 1]`.
        count: int64 `[1]`, the number of tokens.
    """
    zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
    token = op.Range(zero, op.Squeeze(count), one)
    starts = op.Cast(cu_seqlens, to=ir.DataType.INT64)
    axis = op.Constant(value_ints=[1])
    # How many sequences have begun: the same number for two tokens of one sequence only.
    begun = op.LessOrEqual(starts, op.Unsqueeze(token, axis))  # [N, sequences + 1]
    sequence = op.ReduceSum(op.Cast(begun, to=ir.DataType.INT64), axis, keepdims=0)
    return op.Equal(op.Unsqueeze(sequence, axis), sequence)
