"""`SeparateRoPE`: rotary inside `GroupQueryAttention` -> `RotaryEmbedding` in front of it.

**Before**

```
y, present_key, present_value = com.microsoft.GroupQueryAttention <do_rotary = 1>
    (q, k, v, past_key, past_value, seqlens_k, total, cos, sin)
```

**After**

```
past = Max (Cast <to = INT64> (seqlens_k) + 1 - S, 0)
positions = Unsqueeze (past, axis_1) + Range (0, S, 1)
rq = com.microsoft.RotaryEmbedding <num_heads = 4> (q, positions, cos, sin)
rk = com.microsoft.RotaryEmbedding <num_heads = 2> (k, positions, cos, sin)
y, present_key, present_value = com.microsoft.GroupQueryAttention
    (rq, rk, v, past_key, past_value, seqlens_k, total)
```

Positions are `position_ids` (slot 9) where the node has them. Otherwise they are what the operator
computes: of the T = seqlens_k + 1 tokens of a row, min(S, T) are new, so the first new one has the
position max(T - S, 0). That covers prompts (padded on the right or not), single tokens, and the
continuation of a prompt. Slots 7, 8 and 9 are left blank, so that later inputs keep their place.

A packed value is taken apart first, as `UnpackQKV` does it: key and query cannot be rotated
otherwise. So the order of the two rules does not matter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.lowering._packed_qkv import Unpacking, emit_unpacking, plan_unpacking
from mobius_ir_rules.rule import Plan, Rule, refuse, standard
from mobius_ir_rules.values import (
    MICROSOFT,
    describe_node,
    describe_value,
    input_at,
    int_attribute,
    like,
    make,
    make_all,
    make_int64s,
    rank,
    static_dim,
)

_INT64 = ir.DataType.INT64


def separate_rope_rules(*, domain: str = MICROSOFT) -> list[Rule]:
    """Return the rules for targets whose `GroupQueryAttention` does not rotate.

    Args:
        domain: Whose `RotaryEmbedding` to make: `com.microsoft`, which DirectML has, or the empty
            string for that of ONNX (opset 23).

    Raises:
        ValueError: If `domain` is another one.
    """
    return [SeparateRoPE(domain=domain)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _SeparatePlan(Plan):
    unpacking: Unpacking | None
    heads: tuple[int, int]
    width: int
    partial: bool


class SeparateRoPE(Rule):
    """Moves rotary out of `GroupQueryAttention`."""

    roots = ((MICROSOFT, "GroupQueryAttention"),)
    emits = (
        (MICROSOFT, "GroupQueryAttention"),
        (MICROSOFT, "RotaryEmbedding"),
        *standard("Add", "Cast", "MatMul", "Max", "Range", "RotaryEmbedding", "Shape", "Split"),
        *standard("Squeeze", "Sub", "Unsqueeze"),
    )

    def __init__(self, *, domain: str = MICROSOFT) -> None:
        """Create the rule; see `separate_rope_rules`."""
        if domain not in ("", MICROSOFT):
            raise ValueError(f"domain is {domain!r}; '' or {MICROSOFT!r} is needed.")
        self._domain = domain
        super().__init__()

    def plan(self, node: ir.Node) -> _SeparatePlan | None:
        """Prove the width of rotation and that nothing happens between unpacking and rotation."""
        if int_attribute(node, "do_rotary", 0) == 0:
            return None
        for index, role in ((14, "q_norm_weight"), (15, "k_norm_weight"), (16, "query_seqlens")):
            if input_at(node, index) is not None:
                refuse(
                    f"{describe_node(node)} has the input {role}; none is needed, because it "
                    "changes what is rotated or where.",
                    node,
                )
        cos, sin = input_at(node, 7), input_at(node, 8)
        half = static_dim(cos, 1)
        if half is None or static_dim(sin, 1) != half:
            refuse(
                f"The tables of {describe_node(node)} are {describe_value(cos)} and "
                f"{describe_value(sin)}, of unknown or unequal width; 2-D tables of one known "
                "width are needed.",
                node,
            )
        unpacking = plan_unpacking(node)
        heads = (int_attribute(node, "num_heads", 0), int_attribute(node, "kv_num_heads", 0))
        size = _head_size(node, unpacking, heads)
        positions = input_at(node, 9)
        if positions is not None and rank(positions) != 2:
            refuse(
                f"The position_ids of {describe_node(node)} are {describe_value(positions)}, of "
                f"rank {rank(positions)}; 2-D ones are needed.",
                node,
            )
        return _SeparatePlan(
            root=node,
            replaced=tuple(node.outputs),
            absorbed=unpacking.nodes if unpacking else (),
            unpacking=unpacking,
            heads=heads,
            width=2 * half,
            partial=2 * half != size,
        )

    def emit(self, op: RewriterContext, plan: _SeparatePlan) -> Sequence[ir.Value]:
        """Make the positions, the two rotations and the operator without rotary."""
        root = plan.root
        if plan.unpacking is not None:
            query, key, value = emit_unpacking(op, plan.unpacking)
        else:
            query, key, value = (tensor for tensor in root.inputs[:3] if tensor is not None)
        positions = input_at(root, 9)
        if positions is None:
            positions = _positions(op, root, query, root.inputs[5])
        rotated = [
            self._rotate(op, plan, tensor, positions, heads)
            for tensor, heads in zip((query, key), plan.heads, strict=True)
        ]
        attributes = {
            name: attribute
            for name, attribute in root.attributes.items()
            if name not in ("do_rotary", "rotary_interleaved")
        }
        return make_all(
            op,
            "GroupQueryAttention",
            [*rotated, value, *root.inputs[3:7], None, None, None, *root.inputs[10:]],
            *(like(output) for output in plan.replaced),
            domain=MICROSOFT,
            attributes=attributes,
            name=root.name,
        )

    def _rotate(
        self,
        op: RewriterContext,
        plan: _SeparatePlan,
        tensor: ir.Value,
        positions: ir.Value,
        heads: int,
    ) -> ir.Value:
        cos, sin = plan.root.inputs[7:9]
        tables = [positions, cos, sin] if self._domain else [cos, sin, positions]
        return make(
            op,
            "RotaryEmbedding",
            [tensor, *tables],
            like(tensor),
            domain=self._domain,
            attributes={
                "num_heads": heads,
                "interleaved": int_attribute(plan.root, "rotary_interleaved", 0) or None,
                "rotary_embedding_dim": plan.width if plan.partial else None,
            },
        )


def _head_size(node: ir.Node, unpacking: Unpacking | None, heads: tuple[int, int]) -> int:
    """Return the size of a head, proved from static widths."""
    if min(heads) > 0:
        if unpacking is not None:
            return unpacking.widths[0] // heads[0]
        for tensor, count in zip(node.inputs[:2], heads, strict=True):
            width = static_dim(tensor, 2)
            if width is not None and width % count == 0:
                return width // count
    refuse(
        f"The head size of {describe_node(node)} is unknown; query or key of known width is "
        "needed.",
        node,
    )


def _measured(root: ir.Node, query: ir.Value) -> tuple[ir.Value, int]:
    """Return a value and an axis of it with the sequence length of `query`.

    A graph input where one has the dimension of that name, so that the positions of all layers
    are one expression; otherwise `query` itself.
    """
    length = None if query.shape is None else query.shape[1]
    if isinstance(length, ir.SymbolicDim) and length.value is not None and root.graph is not None:
        for value in root.graph.inputs:
            for axis, dim in enumerate(value.shape or ()):
                if dim == length:
                    return value, axis
    return query, 1


def _positions(
    op: RewriterContext, root: ir.Node, query: ir.Value, lengths: ir.Value | None
) -> ir.Value:
    """Return the positions int64 `[B, S]` that the operator computes from `seqlens_k`.

    The formula is in the operator's documentation ("Right-padded query chunks", without
    `query_seqlens`).
    """
    assert lengths is not None  # The operator requires it.
    batch = lengths.shape[0] if lengths.shape is not None and len(lengths.shape) == 1 else None
    length = None if query.shape is None else query.shape[1]
    row, one = (_INT64, [batch]), make_int64s(op, [1])
    measured, axis = _measured(root, query)
    span = {"start": axis, "end": axis + 1}
    size = make(op, "Shape", [measured], (_INT64, [1]), attributes=span)
    last = make(op, "Cast", [lengths], row, attributes={"to": _INT64})
    total = make(op, "Add", [last, one], row)
    past = make(op, "Max", [make(op, "Sub", [total, size], row), make_int64s(op, [0])], row)
    zero = make(op, "Squeeze", [make_int64s(op, [0])], (_INT64, []))
    step = make(op, "Squeeze", [one], (_INT64, []))
    scalar = make(op, "Squeeze", [size], (_INT64, []))
    new = make(op, "Range", [zero, scalar, step], (_INT64, [length]))
    first = make(op, "Unsqueeze", [past, one], (_INT64, [batch, 1]))
    return make(op, "Add", [first, new], (_INT64, [batch, length]))
