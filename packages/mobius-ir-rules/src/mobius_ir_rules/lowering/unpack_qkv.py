"""`UnpackQKV`: `GroupQueryAttention` of a packed value -> of query, key and value apart.

**Before**

```
qkv = MatMul (x, w)
y, present_key, present_value = com.microsoft.GroupQueryAttention (qkv, , , ...)
```

**After**

```
wq, wk, wv = Split <axis = -1> (w, widths)
q = MatMul (x, wq)
k = MatMul (x, wk)
v = MatMul (x, wv)
y, present_key, present_value = com.microsoft.GroupQueryAttention (q, k, v, ...)
```

A `w` that joins three weights at the right places gives these weights back. Where the packed value
is no product with a constant weight, or somebody else reads it or the weight, the value itself is
split. A 1-D bias is taken apart like the weight.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.lowering._packed_qkv import Unpacking, emit_unpacking, plan_unpacking
from mobius_ir_rules.rule import Plan, Rule, standard
from mobius_ir_rules.values import MICROSOFT, like, make_all


def unpack_qkv_rules() -> list[Rule]:
    """Return the rules for targets whose `GroupQueryAttention` takes no packed value."""
    return [UnpackQKV()]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _UnpackPlan(Plan):
    unpacking: Unpacking


class UnpackQKV(Rule):
    """Takes the packed value of a `GroupQueryAttention` apart."""

    roots = ((MICROSOFT, "GroupQueryAttention"),)
    emits = ((MICROSOFT, "GroupQueryAttention"), *standard("Add", "MatMul", "Split"))

    def plan(self, node: ir.Node) -> _UnpackPlan | None:
        """Find the widths and what makes the packed value."""
        unpacking = plan_unpacking(node)
        if unpacking is None:
            return None
        return _UnpackPlan(
            root=node,
            replaced=tuple(node.outputs),
            absorbed=unpacking.nodes,
            unpacking=unpacking,
        )

    def emit(self, op: RewriterContext, plan: _UnpackPlan) -> Sequence[ir.Value]:
        """Make the three values and the operator that reads them."""
        return make_all(
            op,
            "GroupQueryAttention",
            [*emit_unpacking(op, plan.unpacking), *plan.root.inputs[3:]],
            *(like(value) for value in plan.replaced),
            domain=MICROSOFT,
            attributes=plan.root.attributes,
            name=plan.root.name,
        )
