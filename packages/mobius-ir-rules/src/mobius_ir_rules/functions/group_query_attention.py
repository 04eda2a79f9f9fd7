"""Body of `com.microsoft::GroupQueryAttention`: cached attention from standard operators.

    output, present_key, present_value, output_qk = GroupQueryAttention(
        query, key, value, past_key, past_value, seqlens_k, total_sequence_length,
        cos_cache, sin_cache, position_ids, attention_bias, head_sink, ...;
        num_heads, kv_num_heads, do_rotary, rotary_interleaved, scale, softcap,
        local_window_size, smooth_softmax, causal)

`query` is `[B, S, num_heads * D]`, `key` and `value` `[B, S, kv_num_heads * D]`, or all three are
packed into `query`; caches are `[B, kv_num_heads, C, D]`. With `T = seqlens_k + 1` the number of
tokens of a row after the step, a row's new tokens stand at positions `P, P + 1, ...`,
`P = max(T - S, 0)`: they are written there into the cache, are rotated by them (unless
`position_ids` is given), and see the slots up to their own. The rows of a batch may have different
`T`; what the output says for rows at or beyond `T`, and the cache there, is unspecified, as for
the kernel. The caches that come out have `max(C, total_sequence_length)` slots.

The order is that of ONNX Runtime's kernels: scale, soft cap, `attention_bias`, mask, and a softmax
in float32 whose denominator has one more term with `smooth_softmax` (`exp(0)`) or `head_sink`
(`exp(sink)`, neither scaled nor capped). Key/value heads are not repeated: the query heads that
share one are rows of the same product.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.calls import (
    CallBody,
    given_inputs,
    make_call_body,
    refuse_attributes,
    refuse_inputs,
    refuse_outputs,
    require_inputs,
)
from mobius_ir_rules.rule import refuse
from mobius_ir_rules.values import MICROSOFT, describe_node, float_attribute, int_attribute

GROUP_QUERY_ATTENTION = (MICROSOFT, "GroupQueryAttention")

_INPUTS = (
    "query",
    "key",
    "value",
    "past_key",
    "past_value",
    "seqlens_k",
    "total_sequence_length",
    "cos_cache",
    "sin_cache",
    "position_ids",
    "attention_bias",
    "head_sink",
    "k_scale",
    "v_scale",
    "q_norm_weight",
    "k_norm_weight",
    "query_seqlens",
)
_OUTPUTS = ("output", "present_key", "present_value", "output_qk")
_TOGETHER = (
    ("key", "value"),
    ("past_key", "past_value"),
    ("cos_cache", "sin_cache"),
    ("q_norm_weight", "k_norm_weight"),
)
_MANY = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class GqaForm:
    """What decides the nodes of the body.

    `scale` 0 is one over the root of the head size; `window` -1 is none.
    """

    given: tuple[str, ...]
    outputs: int
    heads: int
    kv_heads: int
    rotary: bool
    interleaved: bool
    scale: float
    softcap: float
    window: int
    smooth: bool
    causal: bool
    q_epsilon: float
    k_epsilon: float


def read_group_query_attention(node: ir.Node) -> GqaForm:
    """Return the form of the call.

    Raises:
        RefusedError: If the body does not compute the call.
    """
    given = given_inputs(node, _INPUTS)
    require_inputs(node, given, ("query", "seqlens_k", "total_sequence_length"))
    refuse_inputs(node, given, ("k_scale", "v_scale", "query_seqlens"))
    refuse_outputs(node, _OUTPUTS, ("output_qk",))
    refuse_attributes(
        node,
        {
            "sliding_window_cache": 0,
            "qk_output": 0,
            "kv_cache_bit_width": 0,
            "k_quant_type": "NONE",
            "v_quant_type": "NONE",
        },
    )
    for pair in _TOGETHER:
        if (pair[0] in given) != (pair[1] in given):
            refuse(
                f"{describe_node(node)} has only one of {pair[0]} and {pair[1]}; both or none "
                "are needed.",
                node,
            )
    rotary = bool(int_attribute(node, "do_rotary", 0))
    if rotary and "cos_cache" not in given:
        refuse(f"{describe_node(node)} has do_rotary=1 and no cos_cache; one is needed.", node)
    heads, kv_heads = (int_attribute(node, name, 0) for name in ("num_heads", "kv_num_heads"))
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        refuse(
            f"{describe_node(node)} has {heads} heads and {kv_heads} key/value heads; a multiple "
            "is needed.",
            node,
        )
    epsilon = float_attribute(node, "qk_norm_epsilon", 1e-6)
    return GqaForm(
        given=given,
        outputs=min(len(node.outputs), 3),
        heads=heads,
        kv_heads=kv_heads,
        rotary=rotary,
        interleaved=bool(int_attribute(node, "rotary_interleaved", 0)),
        scale=float_attribute(node, "scale", 0.0),
        softcap=float_attribute(node, "softcap", 0.0),
        window=int_attribute(node, "local_window_size", -1),
        # -1 is "not set".
        smooth=int_attribute(node, "smooth_softmax", -1) == 1,
        causal=bool(int_attribute(node, "causal", 1)),
        q_epsilon=float_attribute(node, "q_norm_epsilon", epsilon),
        k_epsilon=float_attribute(node, "k_norm_epsilon", epsilon),
    )


def build_group_query_attention(form: GqaForm, opset_version: int) -> ir.Function:
    """Return the body of GroupQueryAttention for the form and `opset_version`."""

    def body(op: OpBuilder, inputs: Mapping[str, ir.Value]) -> Any:
        steps = _Steps(op, form, inputs, opset_version)
        return steps.results()[: form.outputs]

    attributes = [
        ir.AttrInt64("num_heads", form.heads),
        ir.AttrInt64("kv_num_heads", form.kv_heads),
        ir.AttrInt64("do_rotary", int(form.rotary)),
        ir.AttrInt64("rotary_interleaved", int(form.interleaved)),
        ir.AttrFloat32("scale", form.scale),
        ir.AttrFloat32("softcap", form.softcap),
        ir.AttrInt64("local_window_size", form.window),
        ir.AttrInt64("smooth_softmax", int(form.smooth)),
        ir.AttrInt64("causal", int(form.causal)),
        ir.AttrInt64("sliding_window_cache", 0),
        ir.AttrInt64("qk_output", 0),
        ir.AttrInt64("kv_cache_bit_width", 0),
        ir.AttrString("k_quant_type", "NONE"),
        ir.AttrString("v_quant_type", "NONE"),
        ir.AttrFloat32("qk_norm_epsilon", form.q_epsilon),
        ir.AttrFloat32("q_norm_epsilon", form.q_epsilon),
        ir.AttrFloat32("k_norm_epsilon", form.k_epsilon),
    ]
    return make_call_body(
        GROUP_QUERY_ATTENTION,
        _INPUTS,
        form.given,
        _OUTPUTS[: form.outputs],
        attributes,
        body,
        opset_version,
    )


GROUP_QUERY_ATTENTION_BODY = CallBody(read_group_query_attention, build_group_query_attention)
"""Row of the table of bodies."""


class _Steps:
    """The steps of one body. Heads are `[B, heads, S, D]` throughout."""

    def __init__(
        self, op: OpBuilder, form: GqaForm, inputs: Mapping[str, ir.Value], opset_version: int
    ) -> None:
        self.op, self.form, self.inputs, self.opset_version = op, form, inputs, opset_version
        self.length = op.Shape(inputs["query"], start=1, end=2)  # [1], S
        self.total = op.Reshape(
            op.Cast(inputs["total_sequence_length"], to=ir.DataType.INT64), self.vector(-1)
        )
        filled = op.Cast(op.Reshape(inputs["seqlens_k"], self.vector(-1)), to=ir.DataType.INT64)
        self.filled = op.Add(filled, self.vector(1))  # [B], T
        first = op.Max(op.Sub(self.filled, self.length), self.vector(0))  # [B], P
        counted = op.Range(self.whole(0), op.Squeeze(self.length), self.whole(1))
        self.slots = op.Add(op.Unsqueeze(first, self.vector(1)), counted)  # [B, S]

    def results(self) -> tuple[Any, Any, Any]:
        op, form = self.op, self.form
        query, key, value = self.heads()
        if "q_norm_weight" in form.given:
            query = self.norm(query, self.inputs["q_norm_weight"], form.q_epsilon)
            key = self.norm(key, self.inputs["k_norm_weight"], form.k_epsilon)
        if form.rotary:
            query, key = self.rotate(query), self.rotate(key)
        present_key = self.append("past_key", key)
        present_value = self.append("past_value", value)
        # Buffers may be longer than the sequences in them.
        seen = [
            op.Slice(present, self.vector(0), self.total, self.vector(2))
            for present in (present_key, present_value)
        ]
        weights = op.CastLike(self.softmax(self.scores(query, seen[0])), query)
        # [B, kv_heads, group * S, total] x [B, kv_heads, total, D]
        grouped = op.MatMul(self.group(weights), seen[1])
        attended = op.Reshape(grouped, op.Shape(query), allowzero=1)
        flat = op.Transpose(attended, perm=[0, 2, 1, 3])
        output = op.Reshape(flat, self.vector(0, 0, -1))
        return output, present_key, present_value

    def heads(self) -> tuple[Any, Any, Any]:
        """Return query, key and value, split into heads."""
        op, form = self.op, self.form
        if "key" in form.given:
            counts = {"query": form.heads, "key": form.kv_heads, "value": form.kv_heads}
            split = [self.split(self.inputs[name], count) for name, count in counts.items()]
            return split[0], split[1], split[2]
        packed = self.split(self.inputs["query"], form.heads + 2 * form.kv_heads)
        ends = [0, form.heads, form.heads + form.kv_heads, form.heads + 2 * form.kv_heads]
        query, key, value = (
            op.Slice(packed, self.vector(start), self.vector(end), self.vector(1))
            for start, end in itertools.pairwise(ends)
        )
        return query, key, value

    def split(self, x: Any, heads: int) -> Any:
        """`[B, S, heads * D]` -> `[B, heads, S, D]`."""
        split = self.op.Reshape(x, self.vector(0, 0, heads, -1))
        return self.op.Transpose(split, perm=[0, 2, 1, 3])

    def group(self, x: Any) -> Any:
        """`[B, heads, S, n]` -> `[B, kv_heads, group * S, n]`."""
        return self.op.Reshape(x, self.vector(0, self.form.kv_heads, -1, 0))

    def norm(self, x: Any, weight: Any, epsilon: float) -> Any:
        """Return each head divided by its root mean square, times `weight`, in float32."""
        op = self.op
        wide = op.Cast(x, to=ir.DataType.FLOAT)
        square, axes = op.Mul(wide, wide), self.vector(-1)
        mean = (
            op.ReduceMean(square, axes=[-1], keepdims=1)
            if self.opset_version < 18
            else op.ReduceMean(square, axes, keepdims=1)
        )
        root = op.Sqrt(op.Add(mean, self.real(epsilon)))
        scaled = op.Mul(op.Div(wide, root), op.Cast(weight, to=ir.DataType.FLOAT))
        return op.CastLike(scaled, x)

    def rotate(self, x: Any) -> Any:
        """Return `x` rotated by the positions of its tokens, the first channels of a head only."""
        op = self.op
        positions = self.inputs.get("position_ids", self.slots)
        cos, sin = (
            op.Unsqueeze(op.Gather(self.inputs[f"{name}_cache"], positions), self.vector(1))
            for name in ("cos", "sin")
        )  # [B, 1, S, half]
        half = op.Shape(self.inputs["cos_cache"], start=1, end=2)
        width = op.Add(half, half)
        turned = op.Slice(x, self.vector(0), width, self.vector(3))
        rest = op.Slice(x, width, self.vector(_MANY), self.vector(3))
        if self.form.interleaved:
            pairs = op.Reshape(turned, op.Concat(self.vector(0, 0, 0, -1, 2), axis=0))
            left = op.Gather(pairs, self.whole(0), axis=4)
            right = op.Gather(pairs, self.whole(1), axis=4)
        else:
            left = op.Slice(turned, self.vector(0), half, self.vector(3))
            right = op.Slice(turned, half, width, self.vector(3))
        first = op.Sub(op.Mul(left, cos), op.Mul(right, sin))
        second = op.Add(op.Mul(right, cos), op.Mul(left, sin))
        if self.form.interleaved:
            last = self.vector(4)
            woven = op.Concat(op.Unsqueeze(first, last), op.Unsqueeze(second, last), axis=4)
            merged = op.Reshape(woven, op.Shape(turned))
        else:
            merged = op.Concat(first, second, axis=3)
        return op.Concat(merged, rest, axis=3)

    def append(self, name: str, new: Any) -> Any:
        """Return the cache with the new tokens at their slots."""
        op = self.op
        batch, size = op.Shape(new, end=2), op.Shape(new, start=3)
        zero = op.CastLike(self.real(0.0), new)
        past = self.inputs.get(name)
        if past is None:
            cache = op.Expand(zero, op.Concat(batch, self.total, size, axis=0))
        else:
            missing = op.Max(op.Sub(self.total, op.Shape(past, start=2, end=3)), self.vector(0))
            tail = op.Expand(zero, op.Concat(batch, missing, size, axis=0))
            cache = op.Concat(past, tail, axis=2)
        slots = op.Unsqueeze(self.slots, self.vector(1, 3))  # [B, 1, S, 1]
        return op.ScatterElements(cache, op.Expand(slots, op.Shape(new)), new, axis=2)

    def scores(self, query: Any, key: Any) -> Any:
        """Return float32 `[B, heads, S, total]`, capped, biased and masked."""
        op, form = self.op, self.form
        if form.scale:
            scale = self.real(form.scale)
        else:
            size = op.Cast(op.Shape(query, start=3), to=ir.DataType.FLOAT)
            scale = op.Div(self.real(1.0), op.Sqrt(size))
        scaled = op.Mul(query, op.CastLike(scale, query))
        product = op.MatMul(self.group(scaled), op.Transpose(key, perm=[0, 1, 3, 2]))
        shape = op.Concat(op.Shape(query, end=3), self.total, axis=0)
        scores = op.Cast(op.Reshape(product, shape, allowzero=1), to=ir.DataType.FLOAT)
        if form.softcap:
            cap = self.real(form.softcap)
            scores = op.Mul(op.Tanh(op.Div(scores, cap)), cap)
        if "attention_bias" in form.given:
            scores = op.Add(scores, op.Cast(self.inputs["attention_bias"], to=ir.DataType.FLOAT))
        return op.Where(self.visible(), scores, self.real(float(np.finfo(np.float32).min)))

    def visible(self) -> Any:
        """Return which slots a query sees: bool `[B, 1, S, total]`."""
        op, form = self.op, self.form
        slot = op.Range(self.whole(0), op.Squeeze(self.total), self.whole(1))
        if not form.causal:
            row = op.Less(slot, op.Unsqueeze(self.filled, self.vector(1)))  # [B, total]
            return op.Unsqueeze(row, self.vector(1, 2))
        own = op.Unsqueeze(self.slots, self.vector(1, 3))  # [B, 1, S, 1]
        visible = op.LessOrEqual(slot, own)
        if form.window > 0:
            visible = op.And(visible, op.Greater(slot, op.Sub(own, self.whole(form.window))))
        return visible

    def softmax(self, scores: Any) -> Any:
        """Return the attention weights, with one more term below where the form has it."""
        op, form = self.op, self.form
        if "head_sink" in form.given:
            sink = op.Cast(self.inputs["head_sink"], to=ir.DataType.FLOAT)
            term = op.Reshape(sink, self.vector(1, form.heads, 1, 1))
        elif form.smooth:
            term = self.real(0.0)
        else:
            return op.Softmax(scores, axis=-1)
        column = op.Expand(term, op.Concat(op.Shape(scores, end=3), self.vector(1), axis=0))
        weights = op.Softmax(op.Concat(scores, column, axis=3), axis=-1)
        return op.Slice(weights, self.vector(0), self.total, self.vector(3))

    def whole(self, value: int) -> Any:
        return self.op.Constant(value_int=value)

    def vector(self, *values: int) -> Any:
        return self.op.Constant(value_ints=list(values))

    def real(self, value: float) -> Any:
        return self.op.Constant(value_float=value)
