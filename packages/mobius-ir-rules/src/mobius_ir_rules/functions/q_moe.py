"""Body of `com.microsoft::QMoE`: `MoE` with expert weights of 2, 4 or 8 bits.

    output = QMoE(input, router_probs, fc1_experts_weights, fc1_scales, fc1_experts_bias, ...;
                  k, expert_weight_bits, block_size, quant_type, weights_prepacked, ...)

As the body of `MoE` (`mobius_ir_rules.functions.moe`), with the weights of each tile dequantized
after they were picked, so that experts that no token is routed to cost nothing. Weights are uint8
`[experts, out, in * bits / 8]`, raw (`weights_prepacked=0`); scales `[experts, out]`, or
`[experts, out, in / block_size]` with `block_size`; zero points, where given, are packed along the
last axis of the scales. `router_weights` `[tokens, experts]` mixes where it is given, and
`router_probs` only chooses.

Kernels disagree on `normalize_routing_weights=0` without `router_weights`: ONNX Runtime's CPU
kernel (1.32) divides by the sum of the `k` best all the same, as its MoE does not. A call that
leaves this open is refused; the softmax over all experts can be given as `router_weights`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.blockwise import SUPPORTED_BITS, dequantize, dequantize_stack
from mobius_ir_rules.functions.calls import (
    CallBody,
    given_inputs,
    make_call_body,
    refuse_attributes,
    refuse_inputs,
    require_inputs,
)
from mobius_ir_rules.functions.expert_activation import (
    Activation,
    activation_attributes,
    read_activation,
)
from mobius_ir_rules.functions.experts import Tiles, every_expert, mixture, softmax_route
from mobius_ir_rules.rule import refuse
from mobius_ir_rules.values import MICROSOFT, describe_node, int_attribute, string_attribute

Q_MOE = (MICROSOFT, "QMoE")

_LAYERS = ("fc1", "fc2", "fc3")
_INPUTS = (
    "input",
    "router_probs",
    *(
        f"{layer}_{part}"
        for layer in _LAYERS
        for part in ("experts_weights", "scales", "experts_bias")
    ),
    *(f"{layer}_zero_points" for layer in _LAYERS),
    "router_weights",
    "fc1_global_scale",
    "fc2_global_scale",
    "fc1_act_scale",
    "fc2_act_scale",
    "fc1_act_block_scale",
    "fc2_act_block_scale",
)


@dataclasses.dataclass(frozen=True)
class QMoeForm:
    """What decides the nodes of the body. `bits` are those of `fc1`, `fc2` and `fc3`."""

    given: tuple[str, ...]
    k: int
    normalize: bool
    activation: Activation
    bits: tuple[int, int, int]
    block_size: int
    accuracy_level: int

    @property
    def separate_gate(self) -> bool:
        """Whether the linear part is a product of its own."""
        return "fc3_experts_weights" in self.given


def read_q_moe(node: ir.Node) -> QMoeForm:
    """Return the form of the call.

    Raises:
        RefusedError: If the body does not compute the call.
    """
    given = given_inputs(node, _INPUTS)
    layers = [layer for layer in _LAYERS if layer != "fc3" or "fc3_experts_weights" in given]
    needed = [f"{layer}_{part}" for layer in layers for part in ("experts_weights", "scales")]
    require_inputs(node, given, ("input", "router_probs", *needed))
    refuse_inputs(node, given, _INPUTS[_INPUTS.index("router_weights") + 1 :])
    refuse_attributes(node, {"use_sparse_mixer": 0})
    quant_type = string_attribute(node, "quant_type", "int")
    prepacked = int_attribute(node, "weights_prepacked", -1)
    if quant_type != "int" or prepacked != 0:
        refuse(
            f"{describe_node(node)} has quant_type={quant_type!r} and "
            f"weights_prepacked={prepacked}; 'int' and 0 are needed, because other layouts are an "
            "execution provider's own.",
            node,
        )
    normalize = bool(int_attribute(node, "normalize_routing_weights", 0))
    if not normalize and "router_weights" not in given:
        refuse(
            f"{describe_node(node)} has normalize_routing_weights=0 and no router_weights, which "
            "kernels compute differently; the one or the other is needed.",
            node,
        )
    common = int_attribute(node, "expert_weight_bits", 4)
    bits = tuple(int_attribute(node, f"{layer}_expert_weight_bits", common) for layer in _LAYERS)
    if not set(bits) <= set(SUPPORTED_BITS):
        refuse(
            f"{describe_node(node)} has experts of {bits} bits; only {SUPPORTED_BITS} are "
            "supported.",
            node,
        )
    return QMoeForm(
        given=given,
        k=int_attribute(node, "k", 1),
        normalize=normalize,
        activation=read_activation(node, separate_gate="fc3_experts_weights" in given),
        bits=(bits[0], bits[1], bits[2]),
        block_size=int_attribute(node, "block_size", 0),
        accuracy_level=int_attribute(node, "accuracy_level", 0),
    )


def build_q_moe(form: QMoeForm, opset_version: int) -> ir.Function:
    """Return the body of QMoE for the form and `opset_version`."""

    def body(op: OpBuilder, inputs: Mapping[str, ir.Value]) -> Any:
        def weights(op: OpBuilder, layer: str, tiles: Tiles) -> Any:
            return _tile_weights(op, form, inputs, layer, tiles.expert)

        logits = inputs["router_probs"]
        mixing = inputs.get("router_weights")
        chosen, share = softmax_route(op, logits, mixing, form.k, form.normalize)
        return mixture(
            op,
            inputs["input"],
            chosen,
            op.CastLike(share, inputs["input"]),
            every_expert(op, op.Shape(logits, start=1)),
            {name[:3]: value for name, value in inputs.items() if name.endswith("_bias")},
            weights,
            k=form.k,
            activation=form.activation,
            separate_gate=form.separate_gate,
        )

    attributes = [
        ir.AttrInt64("k", form.k),
        ir.AttrInt64("normalize_routing_weights", int(form.normalize)),
        ir.AttrInt64("use_sparse_mixer", 0),
        ir.AttrInt64("expert_weight_bits", form.bits[0]),
        *(
            ir.AttrInt64(f"{layer}_expert_weight_bits", bits)
            for layer, bits in zip(_LAYERS, form.bits, strict=True)
        ),
        ir.AttrInt64("block_size", form.block_size),
        ir.AttrInt64("weights_prepacked", 0),
        ir.AttrInt64("accuracy_level", form.accuracy_level),
        ir.AttrString("quant_type", "int"),
        *activation_attributes(form.activation),
    ]
    return make_call_body(Q_MOE, _INPUTS, form.given, ["output"], attributes, body, opset_version)


Q_MOE_BODY = CallBody(read_q_moe, build_q_moe)
"""Row of the table of bodies."""


def _tile_weights(
    op: OpBuilder,
    form: QMoeForm,
    inputs: Mapping[str, ir.Value],
    layer: str,
    expert: ir.Value,
) -> Any:
    """Return the weights `[tiles, out, in]` of one layer, in the type of the input."""
    packed = op.Gather(inputs[f"{layer}_experts_weights"], expert)
    scales = op.CastLike(op.Gather(inputs[f"{layer}_scales"], expert), inputs["input"])
    zero_points = inputs.get(f"{layer}_zero_points")
    if zero_points is not None:
        zero_points = op.Gather(zero_points, expert)
    bits = form.bits[_LAYERS.index(layer)]
    if form.block_size:
        return dequantize_stack(op, packed, scales, zero_points, bits)
    # One block a row. Zero points are packed along the rows: rows become the blocks.
    axis = op.Constant(value_ints=[1])
    scales, packed = op.Unsqueeze(scales, axis), op.Unsqueeze(packed, axis)
    if zero_points is not None:
        zero_points = op.Unsqueeze(zero_points, axis)
    blocks = dequantize(op, packed, scales, zero_points, bits, packed_zero_points=True)
    return op.Squeeze(blocks, axis)
