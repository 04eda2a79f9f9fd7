"""`GQAFusion`: cached causal `Attention` -> `com.microsoft::GroupQueryAttention`.

**Before**

```
mask = mobius.mask.CausalMask (attention_mask, position_ids)
q = RotaryEmbedding <num_heads = 4> (query, cos, sin, position_ids)
k = RotaryEmbedding <num_heads = 2> (key, cos, sin, position_ids)
y, present_key, present_value = Attention <q_num_heads = 4, kv_num_heads = 2>
                                          (q, k, value, mask, past_key, past_value)
```

**After**

```
lengths = ReduceSum <keepdims = 0> (attention_mask, axis_1)
seqlens_k = Cast <to = INT32> (lengths - 1)
total = Cast <to = INT32> (Squeeze (Shape <start = 1, end = 2> (attention_mask)))
y, present_key, present_value =
    com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2, do_rotary = 1>
        (query, key, value, past_key, past_value, seqlens_k, total, cos, sin)
```

The two lengths are made once per rewrite; common subexpression elimination leaves one copy.

The kernel keeps the real tokens of each row next to each other in the cache and computes rotary
positions from their number. So the result is that of `Attention` where prompts are **padded on
the right**; the operator has no way to express left padding. The cache that it returns is laid out
differently for padded rows, which is why nobody else may look into it.

Rotary is fused where query and key are rotated alike, by one table, at the positions that the mask
was made with, and by a width that the kernels take. Otherwise `RotaryEmbedding` stays in front and
the operator gets `do_rotary = 0`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.attention_mask import MaskDescription, describe_mask
from mobius_ir_rules.fusion._cached_attention import cache_of, heads_of
from mobius_ir_rules.fusion._rotary import Rotary, shared_rotary
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
    make_all,
    make_int64s,
    output_at,
    rank,
)

_DTYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def group_query_attention_rules(
    *,
    refuse_attributes: Collection[str] = (),
    explicit_scale: bool = False,
    explicit_positions: bool = False,
) -> list[Rule]:
    """Return the rules that make `GroupQueryAttention` of `Attention`.

    Args:
        refuse_attributes: Attributes of `GroupQueryAttention` that the target's kernel gets wrong
            (WebGPU's ignores `softcap`). An `Attention` that would need one is refused; for one of
            the rotary attributes, `RotaryEmbedding` stays outside instead.
        explicit_scale: Whether to write the default scale, 1/sqrt(head size), into the attribute:
            for a target that has no default (TensorRT-RTX).
        explicit_positions: Whether an operator with rotary inside also gets the position ids that
            it can compute itself: `SeparateRoPE` then finds them and computes none, layer by layer.
    """
    return [
        GQAFusion(
            refuse_attributes=refuse_attributes,
            explicit_scale=explicit_scale,
            explicit_positions=explicit_positions,
        )
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _GQAPlan(Plan):
    """`query` and `key` are before rotation where `rotary` is given."""

    query: ir.Value
    key: ir.Value
    value: ir.Value
    past_key: ir.Value
    past_value: ir.Value
    mask: MaskDescription
    rotary: Rotary | None
    attributes: tuple[tuple[str, int | float], ...]


class GQAFusion(Rule):
    """Makes `GroupQueryAttention` of an `Attention` with a cache and a described causal mask."""

    roots = (("", "Attention"),)
    emits = ((MICROSOFT, "GroupQueryAttention"),)

    def __init__(
        self,
        *,
        refuse_attributes: Collection[str] = (),
        explicit_scale: bool = False,
        explicit_positions: bool = False,
    ) -> None:
        """Create the rule; see `group_query_attention_rules`."""
        self._refused = frozenset(refuse_attributes)
        self._explicit_scale = explicit_scale
        self._explicit_positions = explicit_positions
        super().__init__("GQAFusion")

    def plan(self, node: ir.Node) -> _GQAPlan:
        """Prove that the operator computes the same for prompts padded on the right."""
        query, key, value = _projections(node)
        mask = _mask(node)
        past_key, past_value = cache_of(node)
        heads = heads_of(node, query, key, value, past_key)
        rotary = shared_rotary(
            query, key, mask.position_ids, (heads.query, heads.key_value), heads.size
        )
        if rotary is not None and self._refused & _rotary_attributes(rotary).keys():
            rotary = None
        attributes: dict[str, int | float] = {
            "num_heads": heads.query,
            "kv_num_heads": heads.key_value,
        }
        attributes |= self._score_attributes(node, heads.size)
        if mask.window is not None:
            attributes["local_window_size"] = _window(node, mask.window)
        if rotary is not None:
            attributes |= _rotary_attributes(rotary)
        self._require_right(node, attributes)
        mask_node = node.inputs[3].producer() if node.inputs[3] is not None else None
        absorbed = (*(rotary.nodes if rotary else ()), *((mask_node,) if mask_node else ()))
        return _GQAPlan(
            root=node,
            replaced=tuple(node.outputs[:3]),
            absorbed=absorbed,
            query=rotary.query if rotary else query,
            key=rotary.key if rotary else key,
            value=value,
            past_key=past_key,
            past_value=past_value,
            mask=mask,
            rotary=rotary,
            attributes=tuple(attributes.items()),
        )

    def emit(self, op: RewriterContext, plan: _GQAPlan) -> Sequence[ir.Value]:
        """Make the two lengths and the operator, always with its three outputs."""
        rotary = plan.rotary
        positions = [plan.mask.position_ids] if rotary and self._explicit_positions else []
        return make_all(
            op,
            "GroupQueryAttention",
            [
                plan.query,
                plan.key,
                plan.value,
                plan.past_key,
                plan.past_value,
                _sequence_lengths(op, plan.mask.attention_mask),
                _total_length(op, plan.mask.attention_mask),
                rotary.cos if rotary else None,
                rotary.sin if rotary else None,
                *positions,
            ],
            *(like(value) for value in plan.replaced),
            domain=MICROSOFT,
            attributes=dict(plan.attributes),
            name=plan.root.name,
        )

    def _score_attributes(self, node: ir.Node, head_size: int) -> dict[str, int | float]:
        """Return `scale` and `softcap` where they are not the default."""
        attributes: dict[str, int | float] = {}
        if "scale" in node.attributes:
            scale = float_attribute(node, "scale", 0.0)
            if scale == 0.0:
                refuse(
                    f"The scale of {describe_node(node)} is 0; another one is needed, because "
                    "GroupQueryAttention takes 0 to mean 1/sqrt(head size).",
                    node,
                )
            attributes["scale"] = scale
        elif self._explicit_scale:
            attributes["scale"] = 1.0 / math.sqrt(head_size)
        softcap = float_attribute(node, "softcap", 0.0)
        if softcap < 0.0:
            refuse(
                f"The softcap of {describe_node(node)} is {softcap:g}; a positive one, or 0 for "
                "none, is needed.",
                node,
            )
        if softcap > 0.0:
            attributes["softcap"] = softcap
        return attributes

    def _require_right(self, node: ir.Node, attributes: Mapping[str, int | float]) -> None:
        """Refuse what would need an attribute that the target gets wrong."""
        for name, value in attributes.items():
            if name in self._refused:
                refuse(
                    f"GroupQueryAttention for {describe_node(node)} would have {name} = {value:g}; "
                    "none is needed, because the target gets this attribute wrong.",
                    node,
                )


def _rotary_attributes(rotary: Rotary) -> dict[str, int | float]:
    return {"do_rotary": 1, **({"rotary_interleaved": 1} if rotary.interleaved else {})}


def _projections(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value]:
    query, key, value = (input_at(node, index) for index in range(3))
    if query is None or key is None or value is None:
        refuse(f"{describe_node(node)} lacks query, key or value; all three are needed.", node)
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


def _mask(node: ir.Node) -> MaskDescription:
    value = input_at(node, 3)
    # With our mask, is_causal adds nothing; without one it does not say how long the rows are.
    causal = int_attribute(node, "is_causal", 0)
    if value is None:
        refuse(
            f"{describe_node(node)} has no mask{' but is_causal' if causal else ''}; a mask made "
            "by mobius.mask::CausalMask or mobius.mask::SlidingWindowMask is needed, because "
            "GroupQueryAttention needs the number of real tokens in each row.",
            node,
        )
    mask = describe_mask(value)
    if mask is None:
        refuse(
            f"The mask of {describe_node(node)} is {describe_value(value)}; a mask made by "
            "mobius.mask::CausalMask or mobius.mask::SlidingWindowMask is needed, because "
            "GroupQueryAttention can only be causal, with padding and a window.",
            node,
        )
    if mask.attention_mask.dtype != ir.DataType.INT64:
        refuse(
            f"The padding mask of {describe_node(node)} has the element type "
            f"{mask.attention_mask.dtype}; INT64 is needed, because its sum counts tokens.",
            node,
        )
    return mask


def _window(node: ir.Node, window: int) -> int:
    if window < 1:
        refuse(
            f"The window of the mask of {describe_node(node)} is {window}; at least 1, the "
            "current token, is needed.",
            node,
        )
    return window


def _sequence_lengths(op: RewriterContext, attention_mask: ir.Value) -> ir.Value:
    """Return seqlens_k: the number of real tokens of each row less one, int32 `[B]`."""
    batch = None if attention_mask.shape is None else attention_mask.shape[0]
    shape = ir.Shape([batch])
    int64 = ir.DataType.INT64
    lengths = make(
        op,
        "ReduceSum",
        [attention_mask, make_int64s(op, [1])],
        (int64, shape),
        attributes={"keepdims": 0},
    )
    last = make(op, "Sub", [lengths, make_int64s(op, [1])], (int64, shape))
    int32 = ir.DataType.INT32
    return make(op, "Cast", [last], (int32, shape), attributes={"to": int32})


def _total_length(op: RewriterContext, attention_mask: ir.Value) -> ir.Value:
    """Return total_sequence_length: the width of the padding mask, an int32 scalar."""
    int64, int32 = ir.DataType.INT64, ir.DataType.INT32
    width = make(op, "Shape", [attention_mask], (int64, [1]), attributes={"start": 1, "end": 2})
    scalar = make(op, "Squeeze", [width], (int64, []))
    return make(op, "Cast", [scalar], (int32, []), attributes={"to": int32})
