"""Body of `com.microsoft::PackedMultiHeadAttention`: attention within each of several sequences.

    output = PackedMultiHeadAttention(query, key, value, bias, token_offset,
                                      cumulative_sequence_length, attention_bias;
                                      num_heads, scale)

`query` and `key` are `[tokens, hidden]`, `value` `[tokens, v_hidden]`; or `query` holds all three,
`[tokens, num_heads, 3, head_size]`. `bias` `[hidden + hidden + v_hidden]` is added to them.
`cumulative_sequence_length` is int32 `[sequences + 1]`: 0, then the running sum of the lengths.
A token sees the tokens of its own sequence. `token_offset` says where tokens stand in a padded
layout, which the body has no need of, as it has none of `mask_filter_value`.

The product of all tokens with all tokens is computed and masked: a body that is right, not one for
speed. Softmax is float32.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.block_masks import same_sequence
from mobius_ir_rules.functions.calls import (
    CallBody,
    given_inputs,
    make_call_body,
    refuse_inputs,
    require_inputs,
)
from mobius_ir_rules.rule import refuse
from mobius_ir_rules.values import MICROSOFT, describe_node, float_attribute, int_attribute

PACKED_MULTI_HEAD_ATTENTION = (MICROSOFT, "PackedMultiHeadAttention")

_INPUTS = (
    "query",
    "key",
    "value",
    "bias",
    "token_offset",
    "cumulative_sequence_length",
    "attention_bias",
)


@dataclasses.dataclass(frozen=True)
class PackedForm:
    """What decides the nodes of the body. `scale` 0 is one over the root of the head size."""

    given: tuple[str, ...]
    heads: int
    scale: float
    mask_filter_value: float


def read_packed_multi_head_attention(node: ir.Node) -> PackedForm:
    """Return the form of the call.

    Raises:
        RefusedError: If the body does not compute the call.
    """
    given = given_inputs(node, _INPUTS)
    require_inputs(node, given, ("query", "token_offset", "cumulative_sequence_length"))
    refuse_inputs(node, given, ("attention_bias",))
    if ("key" in given) != ("value" in given):
        refuse(
            f"{describe_node(node)} has only one of key and value; both or none are needed.", node
        )
    heads = int_attribute(node, "num_heads", 0)
    if heads < 1:
        refuse(f"{describe_node(node)} has num_heads={heads}; a positive number is needed.", node)
    return PackedForm(
        given=given,
        heads=heads,
        scale=float_attribute(node, "scale", 0.0),
        mask_filter_value=float_attribute(node, "mask_filter_value", -10000.0),
    )


def build_packed_multi_head_attention(form: PackedForm, opset_version: int) -> ir.Function:
    """Return the body of PackedMultiHeadAttention for the form and `opset_version`."""

    def body(op: OpBuilder, inputs: Mapping[str, ir.Value]) -> Any:
        query, key, value = (_split(op, x, form.heads) for x in _projections(op, form, inputs))
        if form.scale:
            scale = op.Constant(value_float=form.scale)
        else:
            size = op.Cast(op.Shape(query, start=2), to=ir.DataType.FLOAT)
            scale = op.Div(op.Constant(value_float=1.0), op.Sqrt(size))
        scaled = op.Mul(query, op.CastLike(scale, query))
        scores = op.Cast(op.MatMul(scaled, op.Transpose(key, perm=[0, 2, 1])), to=ir.DataType.FLOAT)
        mask = same_sequence(
            op, inputs["cumulative_sequence_length"], op.Shape(query, start=1, end=2)
        )
        lowest = op.Constant(value_float=float(np.finfo(np.float32).min))
        weights = op.Softmax(op.Where(mask, scores, lowest), axis=-1)
        attended = op.MatMul(op.CastLike(weights, value), value)
        return op.Reshape(op.Transpose(attended, perm=[1, 0, 2]), _ints(op, 0, -1))

    attributes = [
        ir.AttrInt64("num_heads", form.heads),
        ir.AttrFloat32("scale", form.scale),
        ir.AttrFloat32("mask_filter_value", form.mask_filter_value),
    ]
    return make_call_body(
        PACKED_MULTI_HEAD_ATTENTION,
        _INPUTS,
        form.given,
        ["output"],
        attributes,
        body,
        opset_version,
    )


PACKED_MULTI_HEAD_ATTENTION_BODY = CallBody(
    read_packed_multi_head_attention, build_packed_multi_head_attention
)
"""Row of the table of bodies."""


def _projections(
    op: OpBuilder, form: PackedForm, inputs: Mapping[str, ir.Value]
) -> tuple[Any, Any, Any]:
    """Return query, key and value `[tokens, heads * size]`, bias added."""
    if "key" in form.given:
        parts = [inputs[name] for name in ("query", "key", "value")]
    else:
        parts = [
            op.Reshape(
                op.Gather(inputs["query"], op.Constant(value_int=index), axis=2), _ints(op, 0, -1)
            )
            for index in range(3)
        ]
    if "bias" in form.given:
        widths = [op.Shape(part, start=1) for part in parts]
        ends = [widths[0], op.Add(widths[0], widths[1])]
        bounds = [_ints(op, 0), *ends, _ints(op, 2**31 - 1)]
        parts = [
            op.Add(part, op.Slice(inputs["bias"], start, end, _ints(op, 0)))
            for part, (start, end) in zip(parts, itertools.pairwise(bounds), strict=True)
        ]
    return parts[0], parts[1], parts[2]


def _split(op: OpBuilder, x: Any, heads: int) -> Any:
    """`[tokens, heads * size]` -> `[heads, tokens, size]`."""
    return op.Transpose(op.Reshape(x, _ints(op, 0, heads, -1)), perm=[1, 0, 2])


def _ints(op: OpBuilder, *values: int) -> Any:
    return op.Constant(value_ints=list(values))
