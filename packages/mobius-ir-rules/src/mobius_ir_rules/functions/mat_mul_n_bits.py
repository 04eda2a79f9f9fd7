"""Body of `com.microsoft::MatMulNBits`: a product with weights that are dequantized first.

    Y = MatMulNBits(A, B, scales, zero_points, g_idx, bias; K, N, bits, block_size)

`A` is `[..., K]`, `B` uint8 `[N, blocks, block_size * bits / 8]` with `blocks = ceil(K /
block_size)`, `scales` `[N, blocks]` or flat. `zero_points` are uint8, packed as `B` is, in rows of
whole bytes, or floats like `scales`; without them every one is the middle of the range. `bias` is
`[N]`. `accuracy_level` allows a kernel to quantize `A`, which a body need not do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.blockwise import SUPPORTED_BITS, dequantize
from mobius_ir_rules.functions.calls import (
    CallBody,
    given_inputs,
    make_call_body,
    refuse_attributes,
    refuse_inputs,
    require_inputs,
)
from mobius_ir_rules.rule import refuse
from mobius_ir_rules.values import MICROSOFT, describe_node, input_at, int_attribute, static_dim

MAT_MUL_N_BITS = (MICROSOFT, "MatMulNBits")

_INPUTS = ("A", "B", "scales", "zero_points", "g_idx", "bias")


@dataclasses.dataclass(frozen=True)
class MatMulNBitsForm:
    """What decides the nodes of the body."""

    given: tuple[str, ...]
    packed_zero_points: bool
    k: int
    n: int
    bits: int
    block_size: int
    accuracy_level: int

    @property
    def blocks(self) -> int:
        """Number of blocks of a row."""
        return -(-self.k // self.block_size)


def read_mat_mul_n_bits(node: ir.Node) -> MatMulNBitsForm:
    """Return the form of the call.

    Raises:
        RefusedError: If the body does not compute the call.
    """
    given = given_inputs(node, _INPUTS)
    require_inputs(node, given, ("A", "B", "scales"))
    refuse_inputs(node, given, ("g_idx",))
    refuse_attributes(node, {"weight_prepacked": 0})
    packed = input_at(node, 1)
    if any(static_dim(packed, axis) == 0 for axis in range(3)):
        refuse(
            f"The weight of {describe_node(node)} is empty, which stands for a projection that is "
            "left out; one that is there is needed.",
            node,
        )
    zero_points = input_at(node, 3)
    if zero_points is not None and zero_points.dtype is None:
        refuse(
            f"The type of the zero points of {describe_node(node)} is not known; uint8 ones are "
            "packed and others are not, so it is needed.",
            node,
        )
    form = MatMulNBitsForm(
        given=given,
        packed_zero_points=zero_points is not None and zero_points.dtype == ir.DataType.UINT8,
        k=int_attribute(node, "K", 0),
        n=int_attribute(node, "N", 0),
        bits=int_attribute(node, "bits", 4),
        block_size=int_attribute(node, "block_size", 0),
        accuracy_level=int_attribute(node, "accuracy_level", 0),
    )
    if form.bits not in SUPPORTED_BITS:
        refuse(
            f"{describe_node(node)} has bits={form.bits}; one of {SUPPORTED_BITS} is needed.", node
        )
    size = form.block_size
    if form.k < 1 or form.n < 1 or size < 16 or size & (size - 1):
        refuse(
            f"{describe_node(node)} has K={form.k}, N={form.n} and block_size={size}; positive "
            "sizes, and a block size that is a power of two and at least 16, are needed.",
            node,
        )
    return form


def build_mat_mul_n_bits(form: MatMulNBitsForm, opset_version: int) -> ir.Function:
    """Return the body of MatMulNBits for the form and `opset_version`."""

    def body(op: OpBuilder, inputs: Mapping[str, ir.Value]) -> Any:
        def rows(value: ir.Value) -> Any:
            return op.Reshape(value, op.Constant(value_ints=[form.n, -1]))

        zero_points = inputs.get("zero_points")
        blocks = dequantize(
            op,
            inputs["B"],
            rows(inputs["scales"]),
            None if zero_points is None else rows(zero_points),
            form.bits,
            packed_zero_points=form.packed_zero_points,
        )
        weight = op.Reshape(blocks, op.Constant(value_ints=[form.n, form.blocks * form.block_size]))
        if form.k % form.block_size:
            weight = op.Slice(
                weight, *(op.Constant(value_ints=[bound]) for bound in (0, form.k, 1))
            )
        product = op.MatMul(inputs["A"], op.Transpose(weight, perm=[1, 0]))
        return op.Add(product, inputs["bias"]) if "bias" in form.given else product

    attributes = [
        ir.AttrInt64("K", form.k),
        ir.AttrInt64("N", form.n),
        ir.AttrInt64("bits", form.bits),
        ir.AttrInt64("block_size", form.block_size),
        ir.AttrInt64("accuracy_level", form.accuracy_level),
        ir.AttrInt64("weight_prepacked", 0),
    ]
    return make_call_body(
        MAT_MUL_N_BITS, _INPUTS, form.given, ["Y"], attributes, body, opset_version
    )


MAT_MUL_N_BITS_BODY = CallBody(read_mat_mul_n_bits, build_mat_mul_n_bits)
"""Row of the table of bodies."""
