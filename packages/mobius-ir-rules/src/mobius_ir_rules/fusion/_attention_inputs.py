"""What an attention node reads, as `GroupQueryAttention` takes it, or why it does not."""

from __future__ import annotations

import onnx_ir as ir

from mobius_ir_rules.attention_mask import MaskDescription, describe_mask
from mobius_ir_rules.functions.sink_attention import SINK_ATTENTION
from mobius_ir_rules.fusion._cached_attention import ATTENTIONS, refuse_unequal_sizes
from mobius_ir_rules.rule import refuse
from mobius_ir_rules.values import (
    describe_node,
    describe_value,
    input_at,
    int_attribute,
    is_used,
    output_at,
    rank,
    static_dim,
)

_DTYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def projections_of(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return query, key and value, 3-D and of one float type.

    Raises:
        RefusedError: Where they are not, or where the node does more than attend.
    """
    query, key, value = (input_at(node, index) for index in range(3))
    if query is None or key is None or value is None:
        refuse(f"{describe_node(node)} lacks query, key or value; all three are needed.", node)
    source = key.producer()
    if source is not None and (source.domain, source.op_type) in ATTENTIONS:
        refuse(
            f"{describe_node(node)} reads the keys of {describe_node(source)}; keys of its own are "
            "needed, because GroupQueryAttention appends to a cache.",
            node,
            inherent=True,
        )
    sizes = static_dim(key, 3), static_dim(value, 3)
    if None not in sizes and sizes[0] != sizes[1]:
        refuse_unequal_sizes(node, *sizes)
    for role, tensor in (("query", query), ("key", key), ("value", value)):
        if rank(tensor) != 3:
            found = "of unknown rank" if rank(tensor) is None else f"{rank(tensor)}-D"
            refuse(
                f"The {role} of {describe_node(node)} is {found}; a 3-D one, "
                "[batch, sequence, heads * head size], is needed.",
                node,
            )
    if query.dtype not in _DTYPES or key.dtype != query.dtype or value.dtype != query.dtype:
        refuse(
            f"Query, key and value of {describe_node(node)} have the element types "
            f"{query.dtype}, {key.dtype} and {value.dtype}; one known type of FLOAT, FLOAT16 and "
            "BFLOAT16 is needed.",
            node,
        )
    sink_attention = (node.domain, node.op_type) == SINK_ATTENTION
    if not sink_attention and input_at(node, 6) is not None:
        refuse(
            f"{describe_node(node)} has the input nonpad_kv_seqlen; none is needed, because "
            "GroupQueryAttention appends to the cache itself.",
            node,
        )
    if is_used(output_at(node, 3)):
        refuse(
            f"The output qk_matmul_output of {describe_node(node)} is used; it must be unused, "
            "because GroupQueryAttention defines its own differently.",
            node,
        )
    precision = int_attribute(node, "softmax_precision", ir.DataType.FLOAT)
    if precision != ir.DataType.FLOAT:
        refuse(
            f"The softmax_precision of {describe_node(node)} is {ir.DataType(precision)}; FLOAT "
            "or none is needed, because that is what GroupQueryAttention computes in.",
            node,
        )
    return query, key, value


def sink_of(node: ir.Node) -> ir.Value | None:
    """Return the sinks of the heads, `[heads]`; `None` for an operator that has none.

    Raises:
        RefusedError: Where they are left out.
    """
    if (node.domain, node.op_type) != SINK_ATTENTION:
        return None
    sink = input_at(node, 6)
    if sink is None:
        refuse(f"{describe_node(node)} has no head_sink; one is needed.", node)
    return sink


def causal_mask_of(node: ir.Node) -> MaskDescription:
    """Return what the mask is, causal and with padding at least.

    Raises:
        RefusedError: Where that is not proved.
    """
    value = input_at(node, 3)
    # With our mask, is_causal adds nothing; without one it does not say how long the rows are.
    causal = int_attribute(node, "is_causal", 0)
    if value is None:
        refuse(
            f"{describe_node(node)} has no mask{' but is_causal' if causal else ''}; a mask made "
            "by an operator of the domain mobius.mask is needed, because GroupQueryAttention needs "
            "the number of real tokens in each row.",
            node,
        )
    mask = describe_mask(value)
    if mask is None:
        refuse(
            f"The mask of {describe_node(node)} is {describe_value(value)}; a mask made by "
            "mobius.mask::CausalMask, SlidingWindowMask or ChunkedMask is needed, because "
            "GroupQueryAttention can only be causal, with padding and a window.",
            node,
        )
    if mask.attention_mask.dtype != ir.DataType.INT64:
        refuse(
            f"The padding mask of {describe_node(node)} has the element type "
            f"{mask.attention_mask.dtype}; INT64 is needed, because its sum counts tokens.",
            node,
        )
    if mask.window is not None and mask.window < 1:
        refuse(
            f"The window of the mask of {describe_node(node)} is {mask.window}; at least 1, the "
            "current token, is needed.",
            node,
        )
    return mask
