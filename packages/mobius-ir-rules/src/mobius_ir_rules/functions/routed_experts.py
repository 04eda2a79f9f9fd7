"""Body of `mobius.moe::RoutedExperts`: each token goes through the experts chosen for it.

    output = RoutedExperts(tokens, chosen, share, fc1, fc2, fc1_bias, fc2_bias,
                           fc1_scales, fc2_scales, fc1_zero_points, fc2_zero_points;
                           k, scale_input, activation_type, fc1_bits, fc1_block_size, ...)

Components say with one call what experts compute; rules recognise the operator (see
`mobius_ir_rules.fusion.moe`), everyone else inlines the body. No built graph leaves with this
domain. How experts are chosen is not its concern, other than that of `com.microsoft::MoE`.

* `tokens` is `[tokens, hidden]` or `[batch, sequence, hidden]`, of any float type.
* `chosen` is int64 `[tokens, k]`, the experts of a token, no two of them alike; `share` is float32
  `[tokens, k]`, how much each counts, none of them negative.
* `fc1` is `[experts, out, hidden]`, `fc2` `[experts, hidden, inner]`, in the type of `tokens`;
  biases, which may be left out, `[experts, out]` and `[experts, hidden]`. A gated expert has gate
  and linear part in one product, `out = 2 * inner`.
* Where `fc1_scales` is given, `fc1` is integers of `fc1_bits` bits, 2, 4 or 8, in blocks of
  `fc1_block_size` numbers that share a scale: uint8 `[experts, out, hidden * bits / 8]`, scales
  `[experts, out, hidden / block_size]` in the type of `tokens`. Zero points, which may be left out,
  are uint8 `[experts, out, ceil(blocks * bits / 8)]`. The layout is that of `com.microsoft::QMoE`.
  They are dequantized after they were picked, so that experts that no token is routed to cost
  nothing. The same goes for `fc2`, with a format of its own.
* With `scale_input` 1 a share multiplies what goes into its expert, not what comes out.
* Attributes of the activation are those of `com.microsoft::MoE`, see
  `mobius_ir_rules.functions.expert_activation`; there are two more kinds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.blockwise import SUPPORTED_BITS, dequantize_stack
from mobius_ir_rules.functions.calls import (
    CallBody,
    given_inputs,
    make_call_body,
    require_inputs,
)
from mobius_ir_rules.functions.expert_activation import (
    EXACT,
    GATED,
    PLAIN,
    Activation,
    activation_attributes,
    read_activation,
)
from mobius_ir_rules.functions.experts import Tiles, every_expert, mixture
from mobius_ir_rules.rule import refuse
from mobius_ir_rules.values import describe_node, int_attribute, static_dim

DOMAIN = "mobius.moe"
ROUTED_EXPERTS = (DOMAIN, "RoutedExperts")

LAYERS = ("fc1", "fc2")
INPUTS = (
    "tokens",
    "chosen",
    "share",
    *LAYERS,
    *(f"{layer}_{part}" for part in ("bias", "scales", "zero_points") for layer in LAYERS),
)
"""Names of the inputs, in their order."""


@dataclasses.dataclass(frozen=True)
class ExpertFormat:
    """How the weights of a layer are quantized.

    Attributes:
        bits: Width of an integer.
        block_size: Numbers of a row that share a scale.
    """

    bits: int
    block_size: int


@dataclasses.dataclass(frozen=True)
class RoutedExpertsForm:
    """What decides the nodes of the body.

    `dtype` and `hidden` are element type and width of the tokens, `None` if not known, and so is
    the number of `experts`. `formats` are those of `LAYERS`, `None` for floats.
    """

    given: tuple[str, ...]
    dtype: ir.DataType | None
    hidden: int | None
    experts: int | None
    k: int
    scale_input: bool
    activation: Activation
    formats: tuple[ExpertFormat | None, ...]


def read_routed_experts(node: ir.Node) -> RoutedExpertsForm:
    """Return the form of the call.

    Raises:
        RefusedError: If the call breaks the operator's contract.
    """
    given = given_inputs(node, INPUTS)
    require_inputs(node, given, INPUTS[:5])
    k = int_attribute(node, "k", 0)
    if k < 1:
        refuse(f"{describe_node(node)} has k={k}; at least 1 is needed.", node)
    return RoutedExpertsForm(
        given=given,
        dtype=node.inputs[0].dtype if node.inputs[0] is not None else None,
        hidden=static_dim(node.inputs[0], -1),
        experts=static_dim(node.inputs[3], 0),
        k=k,
        scale_input=bool(int_attribute(node, "scale_input", 0)),
        activation=read_activation(node, separate_gate=None, kinds=GATED + PLAIN + EXACT),
        formats=tuple(_read_format(node, given, layer) for layer in LAYERS),
    )


def _read_format(node: ir.Node, given: tuple[str, ...], layer: str) -> ExpertFormat | None:
    if f"{layer}_scales" not in given:
        if f"{layer}_zero_points" in given:
            refuse(
                f"{describe_node(node)} has {layer}_zero_points without {layer}_scales; both or "
                "none are needed.",
                node,
            )
        return None
    bits = int_attribute(node, f"{layer}_bits", 0)
    size = int_attribute(node, f"{layer}_block_size", 0)
    if bits not in SUPPORTED_BITS or size < 16 or size & (size - 1):
        refuse(
            f"{describe_node(node)} has {layer}_bits={bits} and {layer}_block_size={size}; one of "
            f"{SUPPORTED_BITS}, and a power of two that is at least 16, are needed.",
            node,
        )
    return ExpertFormat(bits, size)


def build_routed_experts(form: RoutedExpertsForm, opset_version: int) -> ir.Function:
    """Return the body of RoutedExperts for the form and `opset_version`."""

    def body(op: OpBuilder, inputs: Mapping[str, ir.Value]) -> Any:
        def weights(op: OpBuilder, layer: str, tiles: Tiles) -> Any:
            def picked(name: str) -> Any:
                return op.Gather(inputs[name], tiles.expert)

            form_of_layer = form.formats[LAYERS.index(layer)]
            if form_of_layer is None:
                return picked(layer)
            zero_points = f"{layer}_zero_points"
            return dequantize_stack(
                op,
                picked(layer),
                picked(f"{layer}_scales"),
                picked(zero_points) if zero_points in inputs else None,
                form_of_layer.bits,
                form.dtype,
            )

        tokens, share = inputs["tokens"], inputs["share"]
        if form.experts is None:
            experts = every_expert(op, op.Shape(inputs["fc1"], start=0, end=1))
        else:
            experts = op.Constant(value_ints=list(range(form.experts)))
        if form.dtype is None:
            share = op.CastLike(share, tokens)
        elif form.dtype != ir.DataType.FLOAT:
            share = op.Cast(share, to=form.dtype)
        return mixture(
            op,
            tokens,
            inputs["chosen"],
            share,
            experts,
            {name[:3]: value for name, value in inputs.items() if name.endswith("_bias")},
            weights,
            k=form.k,
            activation=form.activation,
            scale_input=form.scale_input,
            dtype=form.dtype,
            hidden=form.hidden,
        )

    attributes = [
        ir.AttrInt64("k", form.k),
        ir.AttrInt64("scale_input", int(form.scale_input)),
        *activation_attributes(form.activation),
    ]
    for layer, each in zip(LAYERS, form.formats, strict=True):
        if each is not None:
            attributes += [
                ir.AttrInt64(f"{layer}_bits", each.bits),
                ir.AttrInt64(f"{layer}_block_size", each.block_size),
            ]
    return make_call_body(
        ROUTED_EXPERTS, INPUTS, form.given, ["output"], attributes, body, opset_version
    )


ROUTED_EXPERTS_BODY = CallBody(read_routed_experts, build_routed_experts)
"""Row of the table of bodies."""
