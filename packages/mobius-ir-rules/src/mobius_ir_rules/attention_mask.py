"""What a decoder mask is made of: `describe_mask(value)` -> `MaskDescription`, or `None`.

The proof is the operator that produced the value (`mobius_ir_rules.functions.masks`), never the
value's name nor a chain of primitives that looks like a mask.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from mobius_ir_rules.functions.masks import CAUSAL_MASK, CHUNKED_MASK, SLIDING_WINDOW_MASK

# What limits a causal mask further: the operator, and its attribute with the number of tokens.
_LIMITS = {CAUSAL_MASK: None, CHUNKED_MASK: "chunk", SLIDING_WINDOW_MASK: "window"}


@dataclasses.dataclass(frozen=True)
class MaskDescription:
    """A causal mask with padding, and a window or chunks where one of them is not `None`.

    Attributes:
        node: The operator that makes the mask.
        attention_mask: The 2-D padding mask, int64 `[B, T]`.
        position_ids: The query tokens' indices among the real tokens of their row, `[B, S]`.
        window: Number of tokens that a query sees, itself included; `None` for no limit.
        chunk: Number of tokens of a chunk, of which a query sees its own only; `None` for none.
    """

    node: ir.Node
    attention_mask: ir.Value
    position_ids: ir.Value
    window: int | None = None
    chunk: int | None = None


def describe_mask(value: ir.Value | None) -> MaskDescription | None:
    """Return what `value` masks, if an operator of the domain `mobius.mask` says so."""
    node = value.producer() if value is not None else None
    if node is None:
        return None
    identifier = (node.domain, node.op_type)
    if identifier not in _LIMITS or len(node.inputs) != 2:
        return None
    attention_mask, position_ids = node.inputs
    if attention_mask is None or position_ids is None:
        return None
    limit = _LIMITS[identifier]
    if limit is None:
        return MaskDescription(node, attention_mask, position_ids)
    attribute = node.attributes.get(limit)
    if attribute is None or attribute.is_ref():
        return None
    return MaskDescription(node, attention_mask, position_ids, **{limit: attribute.as_int()})
