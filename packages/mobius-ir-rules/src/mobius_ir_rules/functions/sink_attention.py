"""Body of `mobius.attention::SinkAttention`: cached attention whose softmax has one more term.

    output, present_key, present_value = SinkAttention(
        query, key, value, attn_mask, past_key, past_value, head_sink;
        q_num_heads, kv_num_heads, scale, softcap)

`query` is `[B, S, q_num_heads * D]`, `key` and `value` `[B, S, kv_num_heads * D]`, caches are
`[B, kv_num_heads, P, D]` and come out with P + S slots, `attn_mask` is bool `[B, 1, S, P + S]`,
`head_sink` `[q_num_heads]`. All is as in `ai.onnx::Attention`, but that the weights of a row are

    exp(score) / (exp(sink of the head) + sum of exp(score))

The sink is neither scaled nor capped. Source: `transformers.models.gpt_oss.modeling_gpt_oss`
`eager_attention_forward`.

As with `mobius.mask`, a component says with one call what it means, rules recognise the call
(`GroupQueryAttention` has the input `head_sink`), everyone else inlines the body, which gives
`Attention` one more slot: a key of zeros, whose score is zero before the mask and the sink after
it, with a value of zeros. Heads are split before, so that a target that has no caches in its
`Attention` can run it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, build_function

from mobius_ir_rules.functions.calls import CallBody
from mobius_ir_rules.rule import refuse
from mobius_ir_rules.values import (
    describe_node,
    float_attribute,
    input_at,
    int_attribute,
    static_dim,
)

SINK_ATTENTION = ("mobius.attention", "SinkAttention")
OLDEST_OPSET = 23
"""The one that `Attention` appeared in."""
_INPUTS = ("query", "key", "value", "attn_mask", "past_key", "past_value", "head_sink")
_OUTPUTS = ("output", "present_key", "present_value")


@dataclasses.dataclass(frozen=True)
class SinkForm:
    """What decides the nodes of the body, and their types."""

    heads: int
    kv_heads: int
    size: int
    dtype: ir.DataType
    scale: float
    softcap: float


def read_sink_attention(node: ir.Node) -> SinkForm:
    """Return the form of the call.

    Raises:
        RefusedError: If an input is missing, or the size of a head or the element type unknown.
    """
    query = input_at(node, 0)
    if len(node.inputs) != len(_INPUTS) or None in node.inputs or query is None:
        refuse(f"{describe_node(node)} needs the inputs {', '.join(_INPUTS)}.", node)
    heads, kv_heads = (int_attribute(node, name, 0) for name in ("q_num_heads", "kv_num_heads"))
    width, dtype = static_dim(query, 2), query.dtype
    if heads < 1 or kv_heads < 1 or heads % kv_heads or width is None or width % heads:
        refuse(
            f"{describe_node(node)} has {heads} heads, {kv_heads} of keys and values, and a query "
            f"of width {width}; multiples are needed.",
            node,
        )
    if dtype is None:
        refuse(f"The element type of {describe_node(node)} is not known; it is needed.", node)
    return SinkForm(
        heads,
        kv_heads,
        width // heads,
        dtype,
        float_attribute(node, "scale", 0.0),
        float_attribute(node, "softcap", 0.0),
    )


def build_sink_attention(form: SinkForm, opset_version: int) -> ir.Function:
    """Return the body of SinkAttention for the form and `opset_version`.

    Raises:
        ValueError: If the opset has no `Attention`.
    """
    domain, name = SINK_ATTENTION
    if opset_version < OLDEST_OPSET:
        raise ValueError(
            f"The body of {domain}::{name} needs opset {OLDEST_OPSET} or later, found opset "
            f"{opset_version}."
        )
    function = build_function(
        _Body(form),
        _formal_inputs(form),
        domain=domain,
        name=name,
        attributes=[
            ir.AttrInt64("q_num_heads", form.heads),
            ir.AttrInt64("kv_num_heads", form.kv_heads),
            ir.AttrFloat32("scale", form.scale),
            ir.AttrFloat32("softcap", form.softcap),
        ],
        opset_imports={"": opset_version},
    )
    for value, output in zip(function.outputs, _OUTPUTS, strict=True):
        value.name = output
    for node in function:
        node.metadata_props.clear()
    return function


SINK_ATTENTION_BODY = CallBody(read_sink_attention, build_sink_attention)
"""Row of the table of bodies."""


def _formal_inputs(form: SinkForm) -> list[ir.Value]:
    """Return inputs with types, from which the body's own follow: what lowers them needs those."""
    keys: list[int | None] = [None, None, form.kv_heads * form.size]
    cache: list[int | None] = [None, form.kv_heads, None, form.size]
    query: list[int | None] = [None, None, form.heads * form.size]
    mask: list[int | None] = [None, 1, None, None]
    sinks: list[int | None] = [form.heads]
    shapes = (query, keys, keys, mask, cache, cache, sinks)
    return [
        ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.BOOL if name == "attn_mask" else form.dtype),
            shape=ir.Shape(shape),
        )
        for name, shape in zip(_INPUTS, shapes, strict=True)
    ]


class _Body:
    """The steps of one body. Heads are `[B, heads, slots, size]` throughout."""

    def __init__(self, form: SinkForm) -> None:
        self._form = form

    def __call__(
        self,
        op: OpBuilder,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        mask: ir.Value,
        past_key: ir.Value,
        past_value: ir.Value,
        sink: ir.Value,
    ) -> Any:
        form = self._form
        present_key = op.Concat(past_key, self._split(op, key, form.kv_heads), axis=2)
        present_value = op.Concat(past_value, self._split(op, value, form.kv_heads), axis=2)
        attended = op.Attention(
            self._split(op, query, form.heads),
            self._with_zero_slot(op, present_key),
            self._with_zero_slot(op, present_value),
            self._bias(op, mask, sink),
            **({"scale": form.scale} if form.scale else {}),
            **({"softcap": form.softcap} if form.softcap else {}),
        )
        width = op.Constant(value_ints=[0, 0, form.heads * form.size])
        merged = op.Reshape(op.Transpose(attended, perm=[0, 2, 1, 3]), width)
        return merged, present_key, present_value

    def _split(self, op: OpBuilder, x: ir.Value, heads: int) -> Any:
        split = op.Reshape(x, op.Constant(value_ints=[0, 0, heads, self._form.size]))
        return op.Transpose(split, perm=[0, 2, 1, 3])

    def _with_zero_slot(self, op: OpBuilder, cache: ir.Value) -> Any:
        rows = op.Shape(cache, start=0, end=1)
        slot = op.Constant(value_ints=[self._form.kv_heads, 1, self._form.size])
        zeros = op.Expand(self._number(op, 0.0), op.Concat(rows, slot, axis=0))
        return op.Concat(cache, zeros, axis=2)

    def _bias(self, op: OpBuilder, mask: ir.Value, sink: ir.Value) -> Any:
        """Return what is added to the scores of the slots and the zero one, `[B, H, S, T + 1]`."""
        heads, one = op.Constant(value_ints=[self._form.heads]), op.Constant(value_ints=[1])
        rows = op.Shape(mask, start=0, end=1)
        queries, keys = op.Shape(mask, start=2, end=3), op.Shape(mask, start=3, end=4)
        # Minus infinity is no danger: the zero slot keeps each row from being empty.
        hidden = op.Where(mask, self._number(op, 0.0), self._number(op, -np.inf))
        scores = op.Expand(hidden, op.Concat(rows, heads, queries, keys, axis=0))
        column = op.Reshape(sink, op.Constant(value_ints=[1, self._form.heads, 1, 1]))
        sinks = op.Expand(column, op.Concat(rows, heads, queries, one, axis=0))
        return op.Concat(scores, sinks, axis=3)

    def _number(self, op: OpBuilder, number: float) -> Any:
        dtype = self._form.dtype
        return op.Constant(value=ir.tensor(np.array(number, dtype.numpy()), dtype=dtype))
