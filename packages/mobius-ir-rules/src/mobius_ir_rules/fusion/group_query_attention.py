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
the right**; lengths have no way to express left padding. The cache that it returns is laid out
differently for padded rows, which is why nobody else may look into it.

Rotary is fused where query and key are rotated alike, by one table, at the positions that the mask
was made with, and by a width that the kernels take. Otherwise `RotaryEmbedding` stays in front and
the operator gets `do_rotary = 0`.

**After, with the mask as a bias**

```
rows = Shape <start = 0, end = 1> (attention_mask)
seqlens_k = Cast <to = INT32> (Expand (Shape <start = 1, end = 2> (attention_mask) - 1, rows))
bias = Where (mask, 0, lowest)
y, present_key, present_value =
    com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2, do_rotary = 0>
        (q, k, value, past_key, past_value, seqlens_k, total, , , , bias)
```

That is right whatever the padding, since every row is full and the bias hides what a query may not
see. The rule takes this form where it has to: for `padding_side="left"`, for a chunked mask, for a
window that the target's kernel gets wrong, for a kernel that does not read `seqlens_k`, and where
somebody else sees the cache. A target whose kernel takes no `attention_bias` is refused there.

`mobius.attention::SinkAttention` becomes the operator with `head_sink`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.attention_mask import MaskDescription
from mobius_ir_rules.functions.sink_attention import SINK_ATTENTION
from mobius_ir_rules.fusion._attention_inputs import causal_mask_of, projections_of, sink_of
from mobius_ir_rules.fusion._cached_attention import cache_of, heads_of, require_unseen_cache
from mobius_ir_rules.fusion._gqa_rows import (
    attention_bias,
    full_lengths,
    real_lengths,
    total_length,
)
from mobius_ir_rules.fusion._rotary import Rotary, shared_rotary
from mobius_ir_rules.rule import Plan, RefusedError, Rule, refuse
from mobius_ir_rules.values import (
    MICROSOFT,
    describe_node,
    float_attribute,
    input_at,
    like,
    make_all,
)

ATTENTION_BIAS = "attention_bias"
HEAD_SINK = "head_sink"
SEQLENS_K = "seqlens_k"
PADDING_SIDES = ("left", "right")


def group_query_attention_rules(
    *,
    refuse_attributes: Collection[str] = (),
    explicit_scale: bool = False,
    explicit_positions: bool = False,
    padding_side: str = "right",
) -> list[Rule]:
    """Return the rules that make `GroupQueryAttention` of `Attention`.

    Args:
        refuse_attributes: Attributes and optional inputs of `GroupQueryAttention` that the target's
            kernel gets wrong (WebGPU's ignores `softcap`, CUDA's takes no `attention_bias`). An
            `Attention` that would need one is refused; for one of the rotary attributes,
            `RotaryEmbedding` stays outside instead, and for `seqlens_k`, which MLX's does not read,
            the mask becomes a bias.
        explicit_scale: Whether to write the default scale, 1/sqrt(head size), into the attribute:
            for a target that has no default (TensorRT-RTX).
        explicit_positions: Whether an operator with rotary inside also gets the position ids that
            it can compute itself: `SeparateRoPE` then finds them and computes none, layer by layer.
        padding_side: Where the rows of a batch are padded. With `"left"` the mask becomes a bias,
            which is right for padding on any side.

    Raises:
        ValueError: If there is no such side.
    """
    return [
        GQAFusion(
            refuse_attributes=refuse_attributes,
            explicit_scale=explicit_scale,
            explicit_positions=explicit_positions,
            padding_side=padding_side,
        )
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _GQAPlan(Plan):
    """`query` and `key` are before rotation where `rotary` is given.

    `bias` is the mask that becomes `attention_bias`, `sink` what becomes `head_sink`.
    """

    query: ir.Value
    key: ir.Value
    value: ir.Value
    past_key: ir.Value
    past_value: ir.Value
    mask: MaskDescription
    rotary: Rotary | None
    bias: ir.Value | None
    sink: ir.Value | None
    attributes: tuple[tuple[str, int | float], ...]


class GQAFusion(Rule):
    """Makes `GroupQueryAttention` of an `Attention` with a cache and a described causal mask."""

    roots = (("", "Attention"), SINK_ATTENTION)
    emits = ((MICROSOFT, "GroupQueryAttention"),)

    def __init__(
        self,
        *,
        refuse_attributes: Collection[str] = (),
        explicit_scale: bool = False,
        explicit_positions: bool = False,
        padding_side: str = "right",
    ) -> None:
        """Create the rule; see `group_query_attention_rules`."""
        if padding_side not in PADDING_SIDES:
            raise ValueError(f"padding_side is {padding_side!r}; one of {PADDING_SIDES} is needed.")
        self._refused = frozenset(refuse_attributes)
        self._explicit_scale = explicit_scale
        self._explicit_positions = explicit_positions
        self._padding_side = padding_side
        super().__init__("GQAFusion")

    def plan(self, node: ir.Node) -> _GQAPlan:
        """Prove that the operator computes the same for prompts padded on the rule's side."""
        query, key, value = projections_of(node)
        sink = sink_of(node)
        mask = causal_mask_of(node)
        past_key, past_value = cache_of(node)
        heads = heads_of(node, query, key, value, past_key)
        bias = input_at(node, 3) if self._needs_bias(node, mask) else None
        rotary = None
        if bias is None:
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
        if mask.window is not None and bias is None:
            attributes["local_window_size"] = mask.window
        if rotary is not None:
            attributes |= _rotary_attributes(rotary)
        self._require_right(node, attributes)
        self._require_sink(node, sink)
        if bias is not None:
            attributes["do_rotary"] = 0  # the default, which MLX's plugin 0.31 takes to be 1
        absorbed = rotary.nodes if rotary else ()
        if bias is None:
            absorbed = (*absorbed, mask.node)
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
            bias=bias,
            sink=sink,
            attributes=tuple(attributes.items()),
        )

    def emit(self, op: RewriterContext, plan: _GQAPlan) -> Sequence[ir.Value]:
        """Make the two lengths and the operator, always with its three outputs."""
        rotary, padding = plan.rotary, plan.mask.attention_mask
        biased = plan.bias is not None
        return make_all(
            op,
            "GroupQueryAttention",
            [
                plan.query,
                plan.key,
                plan.value,
                plan.past_key,
                plan.past_value,
                full_lengths(op, padding) if biased else real_lengths(op, padding),
                total_length(op, padding),
                rotary.cos if rotary else None,
                rotary.sin if rotary else None,
                plan.mask.position_ids if rotary and self._explicit_positions else None,
                _bias(op, plan),
                plan.sink,
            ],
            *(like(value) for value in plan.replaced),
            domain=MICROSOFT,
            attributes=dict(plan.attributes),
            name=plan.root.name,
        )

    def _needs_bias(self, node: ir.Node, mask: MaskDescription) -> bool:
        """Return whether the mask has to become a bias.

        Raises:
            RefusedError: Where it has to and the target takes none.
        """
        try:
            self._require_lengths(node, mask)
        except RefusedError:
            if ATTENTION_BIAS in self._refused:
                raise
            return True
        return False

    def _require_lengths(self, node: ir.Node, mask: MaskDescription) -> None:
        """Prove that the operator computes the same from the lengths of rows, without a bias.

        Raises:
            RefusedError: Where that is not proved.
        """
        if self._padding_side == "left":
            refuse(
                f"GroupQueryAttention for {describe_node(node)} would need attention_bias, which "
                "the target's kernel does not take, because lengths cannot say that rows are "
                "padded on the left.",
                node,
                inherent=True,
            )
        if SEQLENS_K in self._refused:
            refuse(
                f"GroupQueryAttention for {describe_node(node)} would need attention_bias, which "
                "the target's kernel does not take, because it does not read the lengths of rows "
                "either.",
                node,
                inherent=True,
            )
        if mask.chunk is not None:
            refuse(
                f"GroupQueryAttention for {describe_node(node)} would need attention_bias, which "
                "the target's kernel does not take, because the mask is one of chunks of "
                f"{mask.chunk} tokens.",
                node,
                inherent=True,
            )
        if mask.window is not None:
            self._require_right(node, {"local_window_size": mask.window})
        require_unseen_cache(node)

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

    def _require_sink(self, node: ir.Node, sink: ir.Value | None) -> None:
        if sink is not None and HEAD_SINK in self._refused:
            refuse(
                f"GroupQueryAttention for {describe_node(node)} would need head_sink, which the "
                "target's kernel does not take.",
                node,
                inherent=True,
            )

    def _require_right(self, node: ir.Node, attributes: Mapping[str, int | float]) -> None:
        """Refuse what would need an attribute that the target gets wrong."""
        for name, value in attributes.items():
            if name in self._refused:
                refuse(
                    f"GroupQueryAttention for {describe_node(node)} would have {name} = {value:g}; "
                    "none is needed, because the target gets this attribute wrong.",
                    node,
                    inherent=True,
                )


def _bias(op: RewriterContext, plan: _GQAPlan) -> ir.Value | None:
    if plan.bias is None:
        return None
    assert plan.query.dtype is not None  # one of _DTYPES
    return attention_bias(op, plan.bias, plan.query.dtype)


def _rotary_attributes(rotary: Rotary) -> dict[str, int | float]:
    return {"do_rotary": 1, **({"rotary_interleaved": 1} if rotary.interleaved else {})}
