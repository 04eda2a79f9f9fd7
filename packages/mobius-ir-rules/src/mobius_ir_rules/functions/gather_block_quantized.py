"""Body of `com.microsoft::GatherBlockQuantized`: rows are looked up, then dequantized.

    Y = GatherBlockQuantized(data, indices, scales, zero_points; gather_axis, quantize_axis,
                             block_size, bits)

`data` is uint8 `[N, K * bits / 8]`, low bits first, `scales` `[N, K / block_size]`. `zero_points`
are packed as `data` is, in rows of whole bytes; without them every one is the middle of the range.
`data` of other types, and of another rank, has no body here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.blockwise import SUPPORTED_BITS, dequantize
from mobius_ir_rules.functions.calls import CallBody, given_inputs, make_call_body, require_inputs
from mobius_ir_rules.rule import refuse
from mobius_ir_rules.values import MICROSOFT, describe_node, int_attribute, static_dim

GATHER_BLOCK_QUANTIZED = (MICROSOFT, "GatherBlockQuantized")

_INPUTS = ("data", "indices", "scales", "zero_points")


@dataclasses.dataclass(frozen=True)
class GatherBlockQuantizedForm:
    """What decides the nodes of the body."""

    given: tuple[str, ...]
    k: int
    bits: int
    block_size: int

    @property
    def blocks(self) -> int:
        """Number of blocks of a row."""
        return self.k // self.block_size


def read_gather_block_quantized(node: ir.Node) -> GatherBlockQuantizedForm:
    """Return the form of the call.

    Raises:
        RefusedError: If the body does not compute the call.
    """
    given = given_inputs(node, _INPUTS)
    require_inputs(node, given, ("data", "indices", "scales"))
    data = node.inputs[0]
    assert data is not None
    width = static_dim(data, 1)
    if data.dtype != ir.DataType.UINT8 or width is None or len(data.shape or ()) != 2:
        refuse(
            f"The data of {describe_node(node)} is {data.dtype} {data.shape}; a matrix of UINT8 "
            "with rows of a known length is needed.",
            node,
        )
    axes = int_attribute(node, "gather_axis", 0) % 2, int_attribute(node, "quantize_axis", 1) % 2
    if axes != (0, 1):
        refuse(
            f"{describe_node(node)} has gather_axis and quantize_axis {axes}; 0 and 1 are needed.",
            node,
        )
    bits = int_attribute(node, "bits", 4)
    size = int_attribute(node, "block_size", 128)
    if bits not in SUPPORTED_BITS:
        refuse(f"{describe_node(node)} has bits={bits}; one of {SUPPORTED_BITS} is needed.", node)
    k = width * 8 // bits
    if size < 16 or size & (size - 1) or k % size:
        refuse(
            f"{describe_node(node)} has rows of {k} numbers and block_size={size}; a power of two "
            "that is at least 16 and divides them is needed.",
            node,
        )
    return GatherBlockQuantizedForm(given, k, bits, size)


def build_gather_block_quantized(form: GatherBlockQuantizedForm, opset_version: int) -> ir.Function:
    """Return the body of GatherBlockQuantized for the form and `opset_version`."""

    def body(op: OpBuilder, inputs: Mapping[str, ir.Value]) -> Any:
        def looked_up(name: str) -> Any:
            return op.Gather(inputs[name], inputs["indices"], axis=0)

        def shaped(value: Any, *last: int) -> Any:
            shape = op.Concat(op.Shape(inputs["indices"]), op.Constant(value_ints=last), axis=0)
            return op.Reshape(value, shape)

        block_bytes = form.block_size * form.bits // 8
        blocks = dequantize(
            op,
            shaped(looked_up("data"), form.blocks, block_bytes),
            looked_up("scales"),
            looked_up("zero_points") if "zero_points" in form.given else None,
            form.bits,
            packed_zero_points=True,
        )
        return shaped(blocks, form.k)

    attributes = [
        ir.AttrInt64("gather_axis", 0),
        ir.AttrInt64("quantize_axis", 1),
        ir.AttrInt64("block_size", form.block_size),
        ir.AttrInt64("bits", form.bits),
    ]
    return make_call_body(
        GATHER_BLOCK_QUANTIZED, _INPUTS, form.given, ["Y"], attributes, body, opset_version
    )


GATHER_BLOCK_QUANTIZED_BODY = CallBody(read_gather_block_quantized, build_gather_block_quantized)
"""Row of the table of bodies."""
