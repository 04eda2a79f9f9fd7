"""`MatMulNBitsToDequantize`: com.microsoft MatMulNBits -> DequantizeLinear, Transpose, MatMul.

For targets that know blocked DequantizeLinear (ONNX opset 21 and later) and not MatMulNBits: the
weight stays quantized in the file. The function body of MatMulNBits is the form for everyone else.

**Before**

```
y = com.microsoft.MatMulNBits <K = 64, N = 8, bits = 4, block_size = 32> (a, b, scales, zero_points)
```

**After**

```
w = DequantizeLinear <axis = 1, block_size = 32> (b_uint4, scales, zero_points_uint4)
y = MatMul (a, Transpose <perm = [1, 0]> (w))
```

`b_uint4` is `[N, K]`: for 8 bits uint8, for 4 bits UINT4, which is how ONNX stores the very bytes
of `b`. Where MatMulNBits leaves out the zero points, they are the middle of the range; those of
DequantizeLinear are 0. So the integers are stored less the middle then, as INT4 or INT8, which is
the only form that some runtimes take. All are computed lazily from `b`, loaded or not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import RewriterContext, RewriteRule

from mobius_ir_rules.expressions import Expression, Reshape, Slice
from mobius_ir_rules.functions.mat_mul_n_bits import (
    MAT_MUL_N_BITS,
    MatMulNBitsForm,
    read_mat_mul_n_bits,
)
from mobius_ir_rules.lazy import DerivedTensor, expression_of
from mobius_ir_rules.packed_integers import Centred, Nibbles
from mobius_ir_rules.rule import Plan, Rule, refuse, standard
from mobius_ir_rules.values import (
    describe_node,
    describe_value,
    input_at,
    is_weight,
    like,
    make,
)

_OPSET = 21
_TYPES = {4: ir.DataType.UINT4, 8: ir.DataType.UINT8}
_CENTRED = {4: ir.DataType.INT4, 8: ir.DataType.INT8}


def mat_mul_n_bits_to_dequantize_rules() -> list[RewriteRule]:
    """Return the rules of this module."""
    return [MatMulNBitsToDequantize()]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _DequantizePlan(Plan):
    form: MatMulNBitsForm
    weight: Expression
    zero_points: Expression | None
    name: str


class MatMulNBitsToDequantize(Rule):
    """Take one MatMulNBits with a weight of 4 or 8 bits apart."""

    roots = (MAT_MUL_N_BITS,)
    emits = standard("Add", "DequantizeLinear", "MatMul", "Transpose")

    def plan(self, node: ir.Node) -> _DequantizePlan:
        """Prove that weight and zero points are constants in a layout that can be rewritten."""
        form = read_mat_mul_n_bits(node)
        # A node in a subgraph does not know its opset.
        opset = getattr(node.graph, "opset_imports", {}).get("", _OPSET)
        if opset < _OPSET:
            refuse(
                f"{describe_node(node)} is in a model of opset {opset}; {_OPSET} is needed, the "
                "first with blocked DequantizeLinear.",
                node,
            )
        if form.bits not in _TYPES:
            refuse(
                f"{describe_node(node)} has bits={form.bits}; 4 or 8 are needed, because ONNX has "
                "no type of other widths in opset 21.",
                node,
            )
        weight = _constant(node, "B", input_at(node, 1))
        scales = input_at(node, 2)
        if scales is None or scales.shape is None or list(scales.shape) != [form.n, form.blocks]:
            refuse(
                f"The scales of {describe_node(node)} have the shape "
                f"{None if scales is None else scales.shape}; [{form.n}, {form.blocks}] is needed.",
                node,
            )
        zero_points = None
        if "zero_points" in form.given:
            if not form.packed_zero_points:
                refuse(
                    f"The zero points of {describe_node(node)} are floats; packed integers are "
                    "needed.",
                    node,
                )
            packed = _constant(node, "zero_points", input_at(node, 3))
            zero_points = _integers(packed, form.n, form.blocks, form.bits, centred=False)
        value = node.inputs[1]
        assert value is not None
        return _DequantizePlan(
            root=node,
            replaced=(node.outputs[0],),
            form=form,
            weight=_integers(weight, form.n, form.k, form.bits, centred=zero_points is None),
            zero_points=zero_points,
            name=str(value.name),
        )

    def emit(self, op: RewriterContext, plan: _DequantizePlan) -> Sequence[ir.Value]:
        """Make the weights, and the nodes that use them."""
        form, root, scales = plan.form, plan.root, plan.root.inputs[2]
        assert scales is not None
        suffix = plan.weight.dtype.name.lower()
        weight = _initializer(op, plan.weight, f"{plan.name}.{suffix}")
        zero_points = None
        if plan.zero_points is not None:
            zero_points = _initializer(op, plan.zero_points, f"{plan.name}.zero_points.{suffix}")
        dequantized = make(
            op,
            "DequantizeLinear",
            [weight, scales, zero_points],
            (scales.dtype, [form.n, form.k]),
            attributes={"axis": 1, "block_size": form.block_size},
        )
        turned = make(
            op,
            "Transpose",
            [dequantized],
            (scales.dtype, [form.k, form.n]),
            attributes={"perm": [1, 0]},
        )
        declared_output = like(plan.replaced[0])
        product = make(op, "MatMul", [root.inputs[0], turned], declared_output, name=root.name)
        if "bias" in form.given:
            product = make(op, "Add", [product, root.inputs[5]], declared_output)
        return [product]


def _constant(node: ir.Node, role: str, value: ir.Value | None) -> Expression:
    """Return how to compute the constant; refuse what is none, or what has another reader."""
    expression = expression_of(value) if value is not None and is_weight(value) else None
    if value is None or expression is None or expression.dtype != ir.DataType.UINT8:
        refuse(
            f"The input {role} of {describe_node(node)} is {describe_value(value)}; an "
            "initializer of uint8, of known shape, is needed.",
            node,
        )
    if len(value.uses()) != 1 or value.is_graph_output():
        refuse(
            f"The input {role} of {describe_node(node)}, {describe_value(value)}, has another "
            "reader; one of its own is needed, because the shared one would be stored twice.",
            node,
        )
    return expression


def _integers(
    packed: Expression, rows: int, columns: int, bits: int, *, centred: bool
) -> Expression:
    """Return the integers `[rows, columns]` of rows of bytes, less the middle if `centred`."""
    if centred:
        packed = Centred(packed, bits)
    if bits == 4:
        return Nibbles(packed, rows, columns, (_CENTRED if centred else _TYPES)[bits])
    whole = Reshape(packed, (rows, int(np.prod(packed.shape)) // rows))
    if whole.shape[1] == columns:
        return whole
    return Slice(whole, (slice(0, rows), slice(0, columns)))


def _initializer(op: RewriterContext, expression: Expression, name: str) -> ir.Value:
    """Make an initializer that is computed when it is read."""
    return op.initializer(DerivedTensor(expression, name), name)
