"""`rotary_embedding_to_microsoft_rules()`: ai.onnx RotaryEmbedding -> com.microsoft's.

For targets such as DirectML that have only `com.microsoft::RotaryEmbedding`.

**Before**

```
y = RotaryEmbedding <num_heads = 4> (x, cos, sin, position_ids)
```

**After**

```
y = com.microsoft.RotaryEmbedding <num_heads = 4> (x, position_ids, cos, sin)
```

com.microsoft's operator always looks its tables up. Tables that are given a row a token,
`[batch, sequence, half]` and no `position_ids`, become one of `batch * sequence` rows, and the
positions count through it.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.lowering._constants import make_scalar
from mobius_ir_rules.lowering.rotary_embedding import RotaryEmbeddingPlan, plan_rotary_embedding
from mobius_ir_rules.rule import Rule, refuse
from mobius_ir_rules.values import MICROSOFT, describe_node, like, make, make_int64s

_INT64 = ir.DataType.INT64


def rotary_embedding_to_microsoft_rules() -> list[Rule]:
    """Return the rules of this module."""
    return [RotaryEmbeddingToMicrosoft()]


class RotaryEmbeddingToMicrosoft(Rule):
    """Make com.microsoft's operator for the same rotation."""

    roots = (("", "RotaryEmbedding"),)
    emits = ((MICROSOFT, "RotaryEmbedding"),)

    def plan(self, node: ir.Node) -> RotaryEmbeddingPlan | None:
        """Read the node; com.microsoft's operator needs the number of heads in partial rotation."""
        plan = plan_rotary_embedding(node)
        if plan is not None and plan.width != plan.head_size and not plan.heads:
            refuse(
                f"{describe_node(node)} rotates {plan.width} of {plan.head_size} channels and its "
                "number of heads is not known; it is needed for a partial rotation.",
                node,
            )
        return plan

    def emit(self, op: RewriterContext, plan: RotaryEmbeddingPlan) -> Sequence[ir.Value]:
        """Make the node, and tables and positions where there were none."""
        cos, sin, positions = plan.cos, plan.sin, plan.positions
        if positions is None:
            positions = _count_tokens(op, plan)
            cos, sin = (_as_rows(op, plan, table) for table in (cos, sin))
        return [
            make(
                op,
                "RotaryEmbedding",
                [plan.x, positions, cos, sin],
                like(plan.replaced[0]),
                domain=MICROSOFT,
                attributes={
                    "num_heads": plan.heads or None,
                    "interleaved": int(plan.interleaved) or None,
                    "rotary_embedding_dim": plan.width if plan.width != plan.head_size else None,
                },
                name=plan.root.name,
            )
        ]


def _as_rows(op: RewriterContext, plan: RotaryEmbeddingPlan, table: ir.Value) -> ir.Value:
    """`[batch, sequence, half]` -> `[batch * sequence, half]`."""
    half = plan.width // 2
    return make(op, "Reshape", [table, make_int64s(op, [-1, half])], (table.dtype, [None, half]))


def _count_tokens(op: RewriterContext, plan: RotaryEmbeddingPlan) -> ir.Value:
    """Return the positions 0, 1, 2 ... `[batch, sequence]`, the rows of the flat table."""
    assert plan.cos.shape is not None  # Its rank is known.
    shape = make(op, "Shape", [plan.cos], (_INT64, [2]), attributes={"start": 0, "end": 2})
    count = make(op, "ReduceProd", [shape], (_INT64, []), attributes={"keepdims": 0})
    zero, one = make_scalar(op, 0, _INT64), make_scalar(op, 1, _INT64)
    counted = make(op, "Range", [zero, count, one], (_INT64, [None]))
    return make(op, "Reshape", [counted, shape], (_INT64, plan.cos.shape[:2]))
