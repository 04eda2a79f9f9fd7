"""`gelu_to_primitives_rules()`: ai.onnx Gelu -> arithmetic and Erf or Tanh; and to com.microsoft's.

**Before**

```
y = Gelu <approximate = "none"> (x)
```

**After** `gelu_to_primitives_rules()`, for opsets before 20 and targets without any GELU:

```
y = Mul (Mul (x, 0.5), Add (Erf (Mul (x, sqrt(1/2))), 1))
```

and for `approximate = "tanh"`:

```
t = Tanh (Mul (Mul (x, sqrt(2/pi)), Add (Mul (Mul (x, x), 0.044715), 1)))
y = Mul (Mul (x, 0.5), Add (t, 1))
```

**After** `gelu_to_microsoft_rules()`, for targets such as DirectML that have only these:
`com.microsoft::Gelu` is the exact form, `com.microsoft::FastGelu` the tanh form. They are different
functions (4.7e-4 apart), so the attribute decides.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.lowering._constants import make_scalar
from mobius_ir_rules.rule import Plan, Rule, refuse
from mobius_ir_rules.values import (
    MICROSOFT,
    describe_node,
    input_at,
    like,
    make,
    string_attribute,
)

_MICROSOFT_OPERATORS = {"none": "Gelu", "tanh": "FastGelu"}


def gelu_to_primitives_rules() -> list[Rule]:
    """Return the rule that writes a Gelu in Mul, Add and Erf or Tanh."""
    return [GeluToPrimitives()]


def gelu_to_microsoft_rules() -> list[Rule]:
    """Return the rule that makes com.microsoft's Gelu or FastGelu of a Gelu."""
    return [GeluToMicrosoft()]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _GeluPlan(Plan):
    x: ir.Value
    dtype: ir.DataType | None
    approximate: str


class _GeluRule(Rule):
    """What both rules read."""

    roots = (("", "Gelu"),)

    def plan(self, node: ir.Node) -> _GeluPlan | None:
        """Read the node; refuse a form that is neither of the two."""
        x = input_at(node, 0)
        if x is None:
            return None
        approximate = string_attribute(node, "approximate", "none")
        if approximate not in _MICROSOFT_OPERATORS:
            refuse(
                f"{describe_node(node)} has approximate = {approximate!r}; 'none' or 'tanh' is "
                "needed.",
                node,
            )
        return _GeluPlan(
            root=node,
            replaced=(node.outputs[0],),
            x=x,
            dtype=x.dtype or node.outputs[0].dtype,
            approximate=approximate,
        )


class GeluToMicrosoft(_GeluRule):
    """Make com.microsoft's operator for the same function."""

    emits = ((MICROSOFT, "Gelu"), (MICROSOFT, "FastGelu"))

    def emit(self, op: RewriterContext, plan: _GeluPlan) -> Sequence[ir.Value]:
        """Make the node."""
        return [
            make(
                op,
                _MICROSOFT_OPERATORS[plan.approximate],
                [plan.x],
                like(plan.replaced[0]),
                domain=MICROSOFT,
                name=plan.root.name,
            )
        ]


class GeluToPrimitives(_GeluRule):
    """Decompose one Gelu node, in the type of its input as ONNX's own function body does."""

    emits = (("", "Mul"), ("", "Add"), ("", "Erf"), ("", "Tanh"))

    def plan(self, node: ir.Node) -> _GeluPlan | None:
        """Read the node; the constants need a type."""
        plan = super().plan(node)
        if plan is not None and plan.dtype is None:
            refuse(
                f"The element type of the input of {describe_node(node)} is not known; it is "
                "needed for the constants.",
                node,
            )
        return plan

    def emit(self, op: RewriterContext, plan: _GeluPlan) -> Sequence[ir.Value]:
        """Make half of x times one plus Erf or Tanh."""
        x, dtype, declared = plan.x, plan.dtype, (plan.dtype, plan.x.shape)
        assert dtype is not None

        def times(value: ir.Value, factor: float) -> ir.Value:
            return make(op, "Mul", [value, make_scalar(op, factor, dtype)], declared)

        def plus_one(value: ir.Value) -> ir.Value:
            return make(op, "Add", [value, make_scalar(op, 1.0, dtype)], declared)

        if plan.approximate == "none":
            function = make(op, "Erf", [times(x, math.sqrt(0.5))], declared)
        else:
            # x + 0.044715 x^3 as x (1 + 0.044715 x^2). In float16, x^2 and the product overflow
            # to an infinity of the right sign, of which the Tanh is right.
            cubic = plus_one(times(make(op, "Mul", [x, x], declared), 0.044715))
            scaled = times(x, math.sqrt(2.0 / math.pi))
            function = make(op, "Tanh", [make(op, "Mul", [scaled, cubic], declared)], declared)
        factors = [times(x, 0.5), plus_one(function)]
        return [make(op, "Mul", factors, like(plan.replaced[0]), name=plan.root.name)]
