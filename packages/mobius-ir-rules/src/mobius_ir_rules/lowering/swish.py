"""`swish_to_primitives_rules()`: ai.onnx Swish -> Mul and Sigmoid.

For targets and opsets without `Swish`, which exists from opset 24 on; ONNX Runtime has no kernel
of it on any execution provider.

**Before**

```
y = Swish <alpha = 1.5> (x)
```

**After**

```
y = Mul (x, Sigmoid (Mul (x, 1.5)))
```

The inner product is left out where `alpha` is 1, as in SiLU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.lowering._constants import make_scalar
from mobius_ir_rules.rule import Plan, Rule, refuse
from mobius_ir_rules.values import describe_node, float_attribute, input_at, like, make


def swish_to_primitives_rules() -> list[Rule]:
    """Return the rules of this module."""
    return [SwishToPrimitives()]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _SwishPlan(Plan):
    x: ir.Value
    alpha: float
    dtype: ir.DataType | None


class SwishToPrimitives(Rule):
    """Decompose one Swish node."""

    roots = (("", "Swish"),)
    emits = (("", "Mul"), ("", "Sigmoid"))

    def plan(self, node: ir.Node) -> _SwishPlan | None:
        """Read the node; the type is needed only for the constant `alpha`."""
        x = input_at(node, 0)
        if x is None:
            return None
        alpha = float_attribute(node, "alpha", 1.0)
        dtype = x.dtype or node.outputs[0].dtype
        if alpha != 1.0 and dtype is None:
            refuse(
                f"The element type of the input of {describe_node(node)} is not known; it is "
                f"needed for the constant alpha = {alpha:g}.",
                node,
            )
        return _SwishPlan(root=node, replaced=(node.outputs[0],), x=x, alpha=alpha, dtype=dtype)

    def emit(self, op: RewriterContext, plan: _SwishPlan) -> Sequence[ir.Value]:
        """Make the gate and the product."""
        x, argument = plan.x, plan.x
        declared = (plan.dtype, x.shape)
        if plan.alpha != 1.0:
            assert plan.dtype is not None
            argument = make(op, "Mul", [x, make_scalar(op, plan.alpha, plan.dtype)], declared)
        gate = make(op, "Sigmoid", [argument], declared)
        return [make(op, "Mul", [x, gate], like(plan.replaced[0]), name=plan.root.name)]
