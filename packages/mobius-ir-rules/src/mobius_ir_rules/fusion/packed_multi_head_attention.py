"""`PackedMultiHeadAttentionFusion`: attention within packed sequences -> its own operator.

Vision encoders concatenate images of any size into one row of tokens, and let each token see its
own image. The block-diagonal mask of that costs the square of all tokens; the fused operator costs
the sum of the squares of the images.

**Before**, with `query`, `key` and `value` of shape `[1, N, hidden]`

```
mask = mobius.mask.BlockDiagonalMask (cu_seqlens, tokens)
y = Attention <q_num_heads = 4, kv_num_heads = 4> (query, key, value, mask)
```

**After**

```
q, k, v = Squeeze (query, [0]), Squeeze (key, [0]), Squeeze (value, [0])
z = com.microsoft.PackedMultiHeadAttention <num_heads = 4> (q, k, v, , token_offset, lengths)
y = Unsqueeze (z, [0])
```

`lengths` is `cu_seqlens` in int32. `token_offset` int32 `[sequences, longest]` is where the tokens
stand in a padded layout, those of all sequences first and the places of padding after them: for
`cu_seqlens` `[0, 1, 3]` it is `[[0, 2], [3, 1]]`. Both are made for each attention alike, so that
eliminating common subexpressions leaves one copy.

The proof is the mask's operator, whose contract is in `mobius_ir_rules.functions.block_masks`. A
mask from primitives is not looked at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext, RewriteRule

from mobius_ir_rules.functions.block_masks import BLOCK_DIAGONAL_MASK
from mobius_ir_rules.functions.packed_multi_head_attention import PACKED_MULTI_HEAD_ATTENTION
from mobius_ir_rules.rule import Plan, Rule, refuse
from mobius_ir_rules.values import (
    MICROSOFT,
    describe_node,
    describe_value,
    float_attribute,
    input_at,
    int_attribute,
    is_used,
    like,
    make,
    make_int64s,
    output_at,
    producer_of,
    rank,
    static_dim,
)

_INT64 = ir.DataType.INT64
_INT32 = ir.DataType.INT32
_BOOL = ir.DataType.BOOL
_FURTHER_INPUTS = ((4, "past_key"), (5, "past_value"), (6, "nonpad_kv_seqlen"))
_FURTHER_OUTPUTS = ((1, "present_key"), (2, "present_value"), (3, "qk_matmul_output"))


def packed_multi_head_attention_rules() -> list[RewriteRule]:
    """Return the rules of this module."""
    return [PackedMultiHeadAttentionFusion()]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _PackedPlan(Plan):
    tensors: tuple[ir.Value, ir.Value, ir.Value]
    cu_seqlens: ir.Value
    heads: int
    scale: float | None


class PackedMultiHeadAttentionFusion(Rule):
    """Fuse one Attention whose mask is a block-diagonal one."""

    roots = (("", "Attention"),)
    emits = (PACKED_MULTI_HEAD_ATTENTION,)

    def plan(self, node: ir.Node) -> _PackedPlan | None:
        """Prove that the attention is within sequences, and that nothing else is asked of it."""
        mask = producer_of(input_at(node, 3), *BLOCK_DIAGONAL_MASK)
        if mask is None:
            return None
        cu_seqlens, tokens = (input_at(mask, index) for index in range(2))
        query, key, value = (input_at(node, index) for index in range(3))
        if cu_seqlens is None or tokens is None or query is None or key is None or value is None:
            refuse(
                f"{describe_node(node)} or its mask, {describe_node(mask)}, lacks an input; query, "
                "key, value, cu_seqlens and tokens are needed.",
                node,
            )
        _require_plain(node)
        for role, tensor in (("query", query), ("key", key), ("value", value)):
            _require_row(node, role, tensor, tokens)
        heads = int_attribute(node, "q_num_heads", 0)
        kv_heads = int_attribute(node, "kv_num_heads", 0)
        if heads < 1 or heads != kv_heads:
            refuse(
                f"{describe_node(node)} has q_num_heads {heads} and kv_num_heads {kv_heads}; the "
                "same number is needed.",
                node,
            )
        return _PackedPlan(
            root=node,
            replaced=(node.outputs[0],),
            absorbed=(mask,),
            tensors=(query, key, value),
            cu_seqlens=cu_seqlens,
            heads=heads,
            scale=float_attribute(node, "scale", 0.0) or None,
        )

    def emit(self, op: RewriterContext, plan: _PackedPlan) -> Sequence[ir.Value]:
        """Make the operator on tensors without the batch axis."""
        rows = [_without_batch(op, tensor) for tensor in plan.tensors]
        lengths = plan.cu_seqlens
        if lengths.dtype != _INT32:
            lengths = _cast(op, lengths, _INT32)
        # Without its batch axis the output has the shape of the value.
        packed = make(
            op,
            "PackedMultiHeadAttention",
            [*rows, None, _token_offset(op, plan.cu_seqlens), lengths],
            like(rows[2]),
            domain=MICROSOFT,
            attributes={"num_heads": plan.heads, "scale": plan.scale},
            name=plan.root.name,
        )
        return [make(op, "Unsqueeze", [packed, make_int64s(op, [0])], like(plan.replaced[0]))]


def _require_plain(node: ir.Node) -> None:
    """Refuse what the fused operator does not compute."""
    for index, name in _FURTHER_INPUTS:
        if input_at(node, index) is not None:
            refuse(f"{describe_node(node)} has the input {name}; none is needed.", node)
    for index, name in _FURTHER_OUTPUTS:
        if is_used(output_at(node, index)):
            refuse(
                f"The output {name} of {describe_node(node)} is used; it must not be, because "
                "PackedMultiHeadAttention has none.",
                node,
            )
    causal, softcap = int_attribute(node, "is_causal", 0), float_attribute(node, "softcap", 0.0)
    precision = int_attribute(node, "softmax_precision", 0)
    if causal or softcap or precision not in (0, int(ir.DataType.FLOAT)):
        refuse(
            f"{describe_node(node)} has is_causal {causal}, softcap {softcap:g} and "
            f"softmax_precision {precision}; 0, 0, and 0 or 1, are needed.",
            node,
        )


def _require_row(node: ir.Node, role: str, tensor: ir.Value, tokens: ir.Value) -> None:
    """Refuse unless the tensor is one row of the mask's tokens."""
    if rank(tensor) != 3 or static_dim(tensor, 0) != 1:
        refuse(
            f"The {role} of {describe_node(node)}, {describe_value(tensor)}, has the shape "
            f"{tensor.shape}; [1, tokens, hidden] is needed.",
            node,
        )
    assert tensor.shape is not None
    count = None if tokens.shape is None or len(tokens.shape) < 2 else tokens.shape[-2]
    dims = (tensor.shape[1], count)
    known = [dim for dim in dims if isinstance(dim, int) or (dim and dim.value is not None)]
    # A mask of one token would be broadcast to all of them.
    if (len(known) == 2 and known[0] != known[1]) or count == 1:
        refuse(
            f"The {role} of {describe_node(node)} has {dims[0]} tokens and its mask is of "
            f"{dims[1]}; the same number, other than 1, is needed.",
            node,
        )


def _without_batch(op: RewriterContext, tensor: ir.Value) -> ir.Value:
    assert tensor.shape is not None
    declared = (tensor.dtype, tensor.shape[1:])
    return make(op, "Squeeze", [tensor, make_int64s(op, [0])], declared)


def _cast(op: RewriterContext, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    return make(op, "Cast", [x], (dtype, x.shape), attributes={"to": int(dtype)})


def _token_offset(op: RewriterContext, cu_seqlens: ir.Value) -> ir.Value:
    """Make the places of all tokens in a padded layout, then those of padding."""
    sums = _cast(op, cu_seqlens, _INT64)
    row: tuple[ir.DataType, list[None]] = (_INT64, [None])
    zero, one = make_int64s(op, [0]), make_int64s(op, [1])
    behind = make_int64s(op, [2**31 - 1])
    ends = make(op, "Slice", [sums, one, behind, zero], row)
    starts = make(op, "Slice", [sums, zero, make_int64s(op, [-1]), zero], row)
    lengths = make(op, "Sub", [ends, starts], row)
    sequences = make(op, "Shape", [lengths], (_INT64, [1]))
    longest = make(op, "ReduceMax", [lengths], (_INT64, [1]), attributes={"keepdims": 1})
    cells = make(op, "Mul", [sequences, longest], (_INT64, [1]))
    first, step, last = (
        make(op, "Squeeze", [number], (_INT64, [])) for number in (zero, one, cells)
    )
    cell = make(op, "Range", [first, last, step], row)
    length = make(op, "Gather", [lengths, make(op, "Div", [cell, longest], row)], row)
    column = make(op, "Mod", [cell, longest], row)
    real = make(op, "Less", [column, length], (_BOOL, [None]))
    padding = make(op, "Not", [real], (_BOOL, [None]))
    parts = [make(op, "Compress", [cell, chosen], row) for chosen in (real, padding)]
    offsets = make(op, "Concat", parts, row, attributes={"axis": 0})
    shape = make(op, "Concat", [sequences, longest], (_INT64, [2]), attributes={"axis": 0})
    table = make(op, "Reshape", [offsets, shape], (_INT64, [None, None]))
    return _cast(op, table, _INT32)
