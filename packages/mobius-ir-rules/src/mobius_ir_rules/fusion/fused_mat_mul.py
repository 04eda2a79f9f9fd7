"""FusedMatMul: transposed operands and a scale around a MatMul -> one FusedMatMul."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import RewriterContext, RewriteRule

from mobius_ir_rules.fusion.polynomial import scalar
from mobius_ir_rules.rule import Plan, Rule, refuse
from mobius_ir_rules.values import (
    MICROSOFT,
    describe_node,
    float_attribute,
    input_at,
    int_attribute,
    is_binary,
    like,
    make,
    producer_of,
    rank,
)

DTYPES = (
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
    ir.DataType.DOUBLE,
)
"""Types that FusedMatMul's schema allows."""

_PRODUCTS = (("", "MatMul"), (MICROSOFT, "FusedMatMul"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _FusedMatMulPlan(Plan):
    a: ir.Value
    b: ir.Value
    attributes: dict[str, float | int]


class _FusedMatMul(Rule):
    """What both rules emit."""

    emits = ((MICROSOFT, "FusedMatMul"),)

    def emit(self, op: RewriterContext, plan: _FusedMatMulPlan) -> Sequence[ir.Value]:
        """Make the fused node."""
        return [
            make(
                op,
                "FusedMatMul",
                [plan.a, plan.b],
                like(plan.replaced[0]),
                domain=MICROSOFT,
                attributes=plan.attributes,
                name=plan.root.name,
            )
        ]


class TransposeMatMul(_FusedMatMul):
    """Read a transposed operand as it was before the Transpose.

    Before:

        t = Transpose <perm = [0, 2, 1]> (b)
        y = MatMul(a, t)

    After:

        y = com.microsoft.FusedMatMul <transA = 0, transB = 1, alpha = 1.0> (a, b)

    Either operand or both, also of a FusedMatMul; `perm` exchanges the last two axes and no
    others. A Transpose that others read as well stays for them. A transposed weight is read in
    the layout that it is stored in, so a tied embedding stays one tensor.
    """

    roots = _PRODUCTS

    def plan(self, node: ir.Node) -> _FusedMatMulPlan | None:
        """Return what to do with the product, `None` where no operand is a Transpose."""
        if not is_binary(node):
            return None
        attributes = _attributes(node)
        operands, transposes = list(node.inputs[:2]), []
        refused: str | None = None
        for index, name in enumerate(("transA", "transB")):
            transpose = producer_of(input_at(node, index), "", "Transpose")
            if transpose is None or transpose.graph is not node.graph or not transpose.inputs:
                continue
            if (reason := _not_of_last_two(transpose)) or attributes.get(f"transBatch{name[-1]}"):
                refused = refused or reason
                continue
            operands[index] = transpose.inputs[0]
            attributes[name] = 1 - int(attributes[name])
            transposes.append(transpose)
        if not transposes:
            if refused is not None:
                refuse(refused, node)
            return None
        _require_dtype(node)
        a, b = operands
        assert a is not None
        assert b is not None
        return _FusedMatMulPlan(
            root=node,
            replaced=(node.outputs[0],),
            absorbed=tuple(transposes),
            a=a,
            b=b,
            attributes=attributes,
        )


class ScaleMatMul(_FusedMatMul):
    """Let the product scale its own result.

    Before:

        p = MatMul(a, b)
        y = Mul(p, 0.125)        # or Div(p, 8)

    After:

        y = com.microsoft.FusedMatMul <transA = 0, transB = 0, alpha = 0.125> (a, b)

    The scale is a constant of one element, on either side of the Mul, and the unscaled product has
    no other use. A FusedMatMul gets the product of its own `alpha` and the scale.
    """

    roots = (("", "Mul"), ("", "Div"))

    def plan(self, node: ir.Node) -> _FusedMatMulPlan | None:
        """Return what to do with the scale, `None` where it scales no product."""
        found = _scaled(node)
        if found is None:
            return None
        product, constant = found
        value = scalar(constant)
        assert value is not None
        result = product.outputs[0]
        if len(result.uses()) > 1 or result.is_graph_output():
            refuse(
                f"The result of {describe_node(product)} is used elsewhere; {describe_node(node)} "
                "must be its only use.",
                node,
            )
        if (rank(constant) or 0) > (rank(result) or 0):
            refuse(
                f"The scale of {describe_node(node)} has rank {rank(constant)}; one of rank 0 is "
                f"needed, or of at most the rank of the product, {rank(result)}.",
                node,
            )
        dtype = _require_dtype(product)
        attributes = _attributes(product)
        if node.op_type == "Mul":
            alpha = float(attributes["alpha"]) * value
        elif value != 0.0:
            alpha = float(attributes["alpha"]) / value
        else:
            refuse(f"{describe_node(node)} divides by zero; a finite scale is needed.", node)
        if not np.isfinite(np.float32(alpha)):
            refuse(
                f"{describe_node(node)} scales by {alpha}; a finite float32 scale is needed.", node
            )
        if dtype == ir.DataType.DOUBLE and float(np.float32(alpha)) != alpha:
            refuse(
                f"{describe_node(node)} scales by {alpha}, a double; the attribute 'alpha' is a "
                "float32 and not equal to it.",
                node,
            )
        a, b = product.inputs[:2]
        assert a is not None
        assert b is not None
        return _FusedMatMulPlan(
            root=node,
            replaced=(node.outputs[0],),
            absorbed=(product,),
            a=a,
            b=b,
            attributes={**attributes, "alpha": alpha},
        )


def _attributes(product: ir.Node) -> dict[str, float | int]:
    """Return the attributes of the FusedMatMul that computes what a product computes."""
    attributes: dict[str, float | int] = {
        "transA": int_attribute(product, "transA", 0),
        "transB": int_attribute(product, "transB", 0),
        "alpha": float_attribute(product, "alpha", 1.0),
    }
    for name in ("transBatchA", "transBatchB"):
        if moved := int_attribute(product, name, 0):
            attributes[name] = moved
    return attributes


def _not_of_last_two(transpose: ir.Node) -> str | None:
    """Return why the Transpose is not an exchange of the last two axes, or `None` if it is."""
    attribute = transpose.attributes.get("perm")
    axes = rank(transpose.inputs[0])
    if attribute is not None and attribute.is_ref():
        return f"The 'perm' of {describe_node(transpose)} is an attribute of the function."
    if attribute is None:
        perm = None if axes is None else list(reversed(range(axes)))
    else:
        perm = list(attribute.as_ints())
    if perm is None or len(perm) < 2:
        found = "no 'perm' and an input of unknown rank" if perm is None else f"perm={perm}"
    elif perm == [*range(len(perm) - 2), len(perm) - 1, len(perm) - 2]:
        return None
    else:
        found = f"perm={perm}"
    return (
        f"{describe_node(transpose)} has {found}; an exchange of the last two axes, and no other, "
        "is needed."
    )


def _scaled(node: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """Return the product that the node scales and its constant scale, `None` where none."""
    if len(node.inputs) != 2:
        return None
    left, right = node.inputs
    pairs = [(left, right)] if node.op_type == "Div" else [(left, right), (right, left)]
    for operand, constant in pairs:
        product = operand.producer() if operand is not None else None
        if (
            product is not None
            and (product.domain, product.op_type) in _PRODUCTS
            and product.graph is node.graph
            and is_binary(product)
            and constant is not None
            and scalar(constant) is not None
        ):
            return product, constant
    return None


def _require_dtype(product: ir.Node) -> ir.DataType:
    a, result = input_at(product, 0), product.outputs[0]
    dtype = result.dtype if a is None or result.dtype is not None else a.dtype
    if dtype is None or dtype not in DTYPES:
        refuse(
            f"The result of {describe_node(product)} has the type {dtype or 'unknown'}; FLOAT, "
            "FLOAT16, BFLOAT16 or DOUBLE is needed.",
            product,
        )
    return dtype


def fused_matmul_rules() -> list[RewriteRule]:
    """Return the rules of this file, for `onnxscript.rewriter.rewrite`."""
    return [TransposeMatMul(), ScaleMatMul()]
