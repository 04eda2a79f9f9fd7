"""What a decoder mask is made of: `describe_mask(value)` -> `MaskDescription`, or `None`.

The proof is the operator that produced the value (`mobius_ir_rules.functions.masks`), never the
value's name nor a chain of primitives that looks like a mask.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from mobius_ir_rules.functions.masks import CAUSAL_MASK, SLIDING_WINDOW_MASK


@dataclasses.dataclass(frozen=True)
class MaskDescription:
    """A causal mask with padding, and a window where `window` is not `None`.

    Attributes:
        attention_mask: The 2-D padding mask, int64 `[B, T]`.
        position_ids: The query tokens' indices among the real tokens of their row, `[B, S]`.
        window: Number of tokens that a query sees, itself included; `None` for no limit.
    """

    attention_mask: ir.Value
    position_ids: ir.Value
    window: int | None = None


def describe_mask(value: ir.Value | None) -> MaskDescription | None:
    """Return what `value` masks, if an operator of the domain `mobius.mask` says so."""
    node = value.producer() if value is not None else None
    if node is None:
        return None
    identifier = (node.domain, node.op_type)
    if identifier not in (CAUSAL_MASK, SLIDING_WINDOW_MASK) or len(node.inputs) != 2:
        return None
    attention_mask, position_ids = node.inputs
    if attention_mask is None or position_ids is None:
        return None
    window: int | None = None
    if identifier == SLIDING_WINDOW_MASK:
        attribute = node.attributes.get("window")
        if attribute is None or attribute.is_ref():
            return None
        window = attribute.as_int()
    return MaskDescription(attention_mask, position_ids, window)
