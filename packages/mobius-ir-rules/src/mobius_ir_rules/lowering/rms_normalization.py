"""`rms_normalization_to_primitives_rules()`: RMSNormalization -> ReduceMean, Sqrt, Div, Mul.

For targets and opsets without `RMSNormalization`, which exists from opset 23 on.

**Before**

```
y = RMSNormalization <axis = -1, epsilon = 1e-6, stash_type = 1> (x, scale)
```

**After**, for a float16 `x`:

```
wide = Cast <to = FLOAT> (x)
root = Sqrt (Add (ReduceMean <keepdims = 1> (Mul (wide, wide), [-1]), 1e-6))
y = Mul (Cast <to = FLOAT16> (Div (wide, root)), scale)
```

The statistics are taken in the type of `stash_type`, float32 by default: the square of a float16
row of magnitude 300 would overflow. A double input stays double, as in ONNX Runtime. The casts are
left out where the types are equal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.lowering._constants import make_scalar
from mobius_ir_rules.lowering._normalization import (
    cast,
    normalized_axes,
    statistics_dtype,
    statistics_shape,
)
from mobius_ir_rules.rule import Plan, Rule, refuse, standard
from mobius_ir_rules.values import (
    describe_node,
    float_attribute,
    is_binary,
    like,
    make,
    make_int64s,
)


def rms_normalization_to_primitives_rules() -> list[Rule]:
    """Return the rules of this module."""
    return [RMSNormalizationToPrimitives()]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _RMSNormalizationPlan(Plan):
    x: ir.Value
    scale: ir.Value
    axes: tuple[int, ...]
    epsilon: float
    stash: ir.DataType
    dtype: ir.DataType


class RMSNormalizationToPrimitives(Rule):
    """Decompose one RMSNormalization node over any trailing axes."""

    roots = (("", "RMSNormalization"),)
    emits = standard("Add", "Cast", "Div", "Mul", "ReduceMean", "Sqrt")

    def plan(self, node: ir.Node) -> _RMSNormalizationPlan | None:
        """Read the node; refuse where types or the axes are not known."""
        x, scale = node.inputs if is_binary(node) else (None, None)
        if x is None or scale is None:
            return None
        if scale.dtype is None:
            refuse(
                f"The element type of the scale of {describe_node(node)} is not known; it is "
                "needed, because it is that of the result.",
                node,
            )
        return _RMSNormalizationPlan(
            root=node,
            replaced=(node.outputs[0],),
            x=x,
            scale=scale,
            axes=normalized_axes(node, x),
            epsilon=float_attribute(node, "epsilon", 1e-5),
            stash=statistics_dtype(node, x),
            dtype=scale.dtype,
        )

    def emit(self, op: RewriterContext, plan: _RMSNormalizationPlan) -> Sequence[ir.Value]:
        """Make the mean of squares, its root, the quotient and the scale."""
        stash = plan.stash
        wide = cast(op, plan.x, stash)
        rows = (stash, statistics_shape(plan.x, plan.axes))
        square = make(op, "Mul", [wide, wide], like(wide))
        axes = make_int64s(op, plan.axes)
        mean = make(op, "ReduceMean", [square, axes], rows, attributes={"keepdims": 1})
        padded = make(op, "Add", [mean, make_scalar(op, plan.epsilon, stash)], rows)
        root = make(op, "Sqrt", [padded], rows)
        normalized = cast(op, make(op, "Div", [wide, root], like(wide)), plan.dtype)
        result = like(plan.replaced[0])
        return [make(op, "Mul", [normalized, plan.scale], result, name=plan.root.name)]
