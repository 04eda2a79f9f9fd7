"""`fused_matmul_to_primitives_rules()`: com.microsoft FusedMatMul -> Transpose, MatMul and Mul.

For targets without a kernel of `com.microsoft::FusedMatMul` (WebGPU, MLX, TensorRT-RTX). Unlike
the operator's function body, the result depends on what each node asks for: no branch, no
reshape, and a transposed weight can be folded.

**Before**

```
y = com.microsoft.FusedMatMul <transB = 1, alpha = 0.125> (a, b)
```

**After**

```
t = Transpose <perm = [0, 2, 1]> (b)
y = Mul (MatMul (a, t), 0.125)
```

`transBatchA` moves dimension 0 of the operand behind the other batch dimensions, before `transA`
exchanges the last two; likewise for B. A transpose needs the operand's rank; without one, any
operands that MatMul takes will do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.lowering._constants import make_scalar
from mobius_ir_rules.rule import Plan, Rule, refuse
from mobius_ir_rules.values import (
    MICROSOFT,
    describe_node,
    describe_value,
    float_attribute,
    int_attribute,
    is_binary,
    like,
    make,
    rank,
)


def fused_matmul_to_primitives_rules() -> list[Rule]:
    """Return the rules of this module."""
    return [FusedMatMulToPrimitives()]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _FusedMatMulPlan(Plan):
    operands: tuple[ir.Value, ir.Value]
    perms: tuple[tuple[int, ...] | None, tuple[int, ...] | None]
    alpha: float
    dtype: ir.DataType | None


class FusedMatMulToPrimitives(Rule):
    """Decompose one FusedMatMul node."""

    roots = ((MICROSOFT, "FusedMatMul"),)
    emits = (("", "MatMul"), ("", "Transpose"), ("", "Mul"))

    def plan(self, node: ir.Node) -> _FusedMatMulPlan | None:
        """Read the node; refuse where a transpose needs a rank, or the scale a type."""
        a, b = node.inputs if is_binary(node) else (None, None)
        if a is None or b is None:
            return None
        alpha = float_attribute(node, "alpha", 1.0)
        dtype = next((v.dtype for v in (a, b, node.outputs[0]) if v.dtype is not None), None)
        if alpha != 1.0 and dtype is None:
            refuse(
                f"The element type of {describe_node(node)} is not known; it is needed for the "
                f"constant alpha = {alpha:g}.",
                node,
            )
        return _FusedMatMulPlan(
            root=node,
            replaced=(node.outputs[0],),
            operands=(a, b),
            perms=(_perm(node, a, "A"), _perm(node, b, "B")),
            alpha=alpha,
            dtype=dtype,
        )

    def emit(self, op: RewriterContext, plan: _FusedMatMulPlan) -> Sequence[ir.Value]:
        """Make the transposes that are asked for, the product and the scale."""
        operands = [
            operand if perm is None else _transpose(op, operand, perm)
            for operand, perm in zip(plan.operands, plan.perms, strict=True)
        ]
        declared, name = like(plan.replaced[0]), plan.root.name
        if plan.alpha == 1.0:
            return [make(op, "MatMul", operands, declared, name=name)]
        assert plan.dtype is not None
        product = make(op, "MatMul", operands, (plan.dtype, declared[1]))
        scale = make_scalar(op, plan.alpha, plan.dtype)
        return [make(op, "Mul", [product, scale], declared, name=name)]


def _perm(node: ir.Node, operand: ir.Value, side: str) -> tuple[int, ...] | None:
    """Return the order of axes in which MatMul is to read the operand, `None` if as it is."""
    last = int_attribute(node, f"trans{side}", 0)
    batch = int_attribute(node, f"transBatch{side}", 0)
    if not (last or batch):
        return None
    axes = rank(operand)
    if axes is None:
        refuse(
            f"The rank of {describe_value(operand)} is not known; {describe_node(node)} "
            f"transposes it, so that it is needed.",
            node,
        )
    if axes < 2 or (batch and axes < 3):
        refuse(
            f"{describe_node(node)} transposes {describe_value(operand)}, of rank {axes}; at "
            f"least {3 if batch else 2} is needed.",
            node,
        )
    order = [*range(1, axes - 1), 0, axes - 1] if batch else list(range(axes))
    if last:
        order[-2:] = reversed(order[-2:])
    return tuple(order)


def _transpose(op: RewriterContext, x: ir.Value, perm: Sequence[int]) -> ir.Value:
    assert x.shape is not None  # Its rank is known.
    shape = ir.Shape([x.shape[axis] for axis in perm])
    return make(op, "Transpose", [x], (x.dtype, shape), attributes={"perm": list(perm)})
