"""`or_to_primitives_rules()`: ai.onnx Or -> Not and And.

For targets without a kernel of `Or`: ONNX Runtime's WebGPU provider has `And` and `Not` only. The
decoder masks of this package use it.

**Before**

```
y = Or (a, b)
```

**After**

```
y = Not (And (Not (a), Not (b)))
```

An operand that is a `Not` already is read without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.rule import Plan, Rule
from mobius_ir_rules.values import is_binary, like, make, producer_of


def or_to_primitives_rules() -> list[Rule]:
    """Return the rules of this module."""
    return [OrToPrimitives()]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OrPlan(Plan):
    operands: tuple[ir.Value, ir.Value]
    negated: tuple[ir.Value | None, ir.Value | None]


class OrToPrimitives(Rule):
    """Write one Or by De Morgan's law; operands may broadcast."""

    roots = (("", "Or"),)
    emits = (("", "And"), ("", "Not"))

    def plan(self, node: ir.Node) -> _OrPlan | None:
        """Find the operands, and of which the negation is on the graph."""
        a, b = node.inputs if is_binary(node) else (None, None)
        if a is None or b is None:
            return None
        inversions = [producer_of(operand, "", "Not") for operand in (a, b)]
        first, second = (inner.inputs[0] if inner is not None else None for inner in inversions)
        return _OrPlan(
            root=node,
            replaced=(node.outputs[0],),
            absorbed=tuple(inner for inner in inversions if inner is not None),
            operands=(a, b),
            negated=(first, second),
        )

    def emit(self, op: RewriterContext, plan: _OrPlan) -> Sequence[ir.Value]:
        """Make the conjunction of the negations, negated."""
        declared = like(plan.replaced[0])
        negations = [
            made if made is not None else make(op, "Not", [operand], like(operand))
            for operand, made in zip(plan.operands, plan.negated, strict=True)
        ]
        neither = make(op, "And", negations, declared)
        return [make(op, "Not", [neither], declared, name=plan.root.name)]
