"""`layer_normalization_to_primitives_rules()`: ai.onnx LayerNormalization -> sums, Sqrt and Mul.

For targets without a kernel of `LayerNormalization`.

**Before**

```
y, mean, inv_std_dev = LayerNormalization <axis = -1, epsilon = 1e-5> (x, scale, bias)
```

**After**, for a float16 `x` of width 64:

```
wide = Cast <to = FLOAT> (x)
mean = Mul (ReduceSum <keepdims = 1> (wide, [-1]), 1/64)
centred = Sub (wide, mean)
variance = Mul (ReduceSum <keepdims = 1> (Mul (centred, centred), [-1]), 1/64)
inv_std_dev = Reciprocal (Sqrt (Add (variance, 1e-5)))
y = Add (Mul (Cast <to = FLOAT16> (Mul (centred, inv_std_dev)), scale), bias)
```

The statistics are taken in the type of `stash_type`, float32 by default: squares overflow in
float16. ReduceSum takes its axes as an input from opset 13 on, ReduceMean from 18 on, and a node in
a subgraph does not know its opset: so the mean is a sum, and the number of elements must be known.
"""

from __future__ import annotations

import dataclasses
import math
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
    describe_value,
    float_attribute,
    input_at,
    is_used,
    like,
    make,
    make_int64s,
    output_at,
    static_dim,
)


def layer_normalization_to_primitives_rules() -> list[Rule]:
    """Return the rules of this module."""
    return [LayerNormalizationToPrimitives()]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LayerNormalizationPlan(Plan):
    x: ir.Value
    scale: ir.Value
    bias: ir.Value | None
    axes: tuple[int, ...]
    count: int
    epsilon: float
    stash: ir.DataType
    statistics: tuple[bool, bool]


class LayerNormalizationToPrimitives(Rule):
    """Decompose one LayerNormalization node over any trailing axes, with its statistics."""

    roots = (("", "LayerNormalization"),)
    emits = standard("Add", "Cast", "Mul", "Reciprocal", "ReduceSum", "Sqrt", "Sub")

    def plan(self, node: ir.Node) -> _LayerNormalizationPlan | None:
        """Read the node; refuse where types, the axes or their size are not known."""
        x, scale = input_at(node, 0), input_at(node, 1)
        if x is None or scale is None:
            return None
        axes = normalized_axes(node, x)
        sizes = [static_dim(x, axis) for axis in axes]
        known = [size for size in sizes if size]
        if len(known) != len(sizes):
            refuse(
                f"{describe_node(node)} normalizes axes of the sizes "
                f"{', '.join(str(size or 'unknown') for size in sizes)} of {describe_value(x)}; "
                "known sizes are needed.",
                node,
            )
        mean, deviation = output_at(node, 1), output_at(node, 2)
        used = (is_used(mean), is_used(deviation))
        wanted = [
            value
            for value, is_wanted in zip((mean, deviation), used, strict=True)
            if value is not None and is_wanted
        ]
        return _LayerNormalizationPlan(
            root=node,
            replaced=(node.outputs[0], *wanted),
            x=x,
            scale=scale,
            bias=input_at(node, 2),
            axes=axes,
            count=math.prod(known),
            epsilon=float_attribute(node, "epsilon", 1e-5),
            stash=statistics_dtype(node, x),
            statistics=used,
        )

    def emit(self, op: RewriterContext, plan: _LayerNormalizationPlan) -> Sequence[ir.Value]:
        """Make mean, variance, the normalized rows, scale and bias."""
        stash, dtype = plan.stash, plan.x.dtype
        assert dtype is not None  # The type of the statistics comes from it.
        wide = cast(op, plan.x, stash)
        full, rows = like(wide), (stash, statistics_shape(plan.x, plan.axes))

        def mean_of(value: ir.Value) -> ir.Value:
            axes = make_int64s(op, plan.axes)
            total = make(op, "ReduceSum", [value, axes], rows, attributes={"keepdims": 1})
            return make(op, "Mul", [total, make_scalar(op, 1.0 / plan.count, stash)], rows)

        mean = mean_of(wide)
        centred = make(op, "Sub", [wide, mean], full)
        variance = mean_of(make(op, "Mul", [centred, centred], full))
        padded = make(op, "Add", [variance, make_scalar(op, plan.epsilon, stash)], rows)
        inverse = make(op, "Reciprocal", [make(op, "Sqrt", [padded], rows)], rows)
        normalized = cast(op, make(op, "Mul", [centred, inverse], full), dtype)
        result, name = like(plan.replaced[0]), plan.root.name
        if plan.bias is None:
            y = make(op, "Mul", [normalized, plan.scale], result, name=name)
        else:
            scaled = make(op, "Mul", [normalized, plan.scale], result)
            y = make(op, "Add", [scaled, plan.bias], result, name=name)
        statistics = zip((mean, inverse), plan.statistics, strict=True)
        return [y, *(value for value, is_wanted in statistics if is_wanted)]
