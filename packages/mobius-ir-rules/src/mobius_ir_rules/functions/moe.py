"""Body of `com.microsoft::MoE`: each token goes through its `k` best experts, and no others.

    output = MoE(input, router_probs, fc1_experts_weights, fc1_experts_bias, fc2_experts_weights,
                 fc2_experts_bias, fc3_experts_weights, fc3_experts_bias; k, activation_type, ...)

`input` is `[tokens, hidden]` or `[batch, sequence, hidden]`, `router_probs` `[tokens, experts]`:
logits, of which the softmax over all experts is the routing weight, divided by the sum of the `k`
best with `normalize_routing_weights`. Expert weights are `[experts, out, in]`, biases
`[experts, out]`. What an expert computes is in `mobius_ir_rules.functions.expert_activation`, what
the mixture costs in `mobius_ir_rules.functions.experts`.

The routing is computed in float32, the experts in the type of `input`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.calls import (
    CallBody,
    given_inputs,
    make_call_body,
    refuse_attributes,
    require_inputs,
)
from mobius_ir_rules.functions.expert_activation import (
    Activation,
    activation_attributes,
    read_activation,
)
from mobius_ir_rules.functions.experts import Tiles, every_expert, mixture, softmax_route
from mobius_ir_rules.values import MICROSOFT, int_attribute

MOE = (MICROSOFT, "MoE")

_INPUTS = (
    "input",
    "router_probs",
    "fc1_experts_weights",
    "fc1_experts_bias",
    "fc2_experts_weights",
    "fc2_experts_bias",
    "fc3_experts_weights",
    "fc3_experts_bias",
)


@dataclasses.dataclass(frozen=True)
class MoeForm:
    """What decides the nodes of the body."""

    given: tuple[str, ...]
    k: int
    normalize: bool
    activation: Activation


def read_moe(node: ir.Node) -> MoeForm:
    """Return the form of the call.

    Raises:
        RefusedError: If the body does not compute the call.
    """
    given = given_inputs(node, _INPUTS)
    needed = ("input", "router_probs", "fc1_experts_weights", "fc2_experts_weights")
    require_inputs(node, given, needed)
    refuse_attributes(node, {"use_sparse_mixer": 0})
    return MoeForm(
        given=given,
        k=int_attribute(node, "k", 1),
        normalize=bool(int_attribute(node, "normalize_routing_weights", 0)),
        activation=read_activation(node, separate_gate="fc3_experts_weights" in given),
    )


def build_moe(form: MoeForm, opset_version: int) -> ir.Function:
    """Return the body of MoE for the form and `opset_version`."""

    def body(op: OpBuilder, inputs: Mapping[str, ir.Value]) -> Any:
        def weights(op: OpBuilder, layer: str, tiles: Tiles) -> Any:
            return op.Gather(inputs[f"{layer}_experts_weights"], tiles.expert)

        logits = inputs["router_probs"]
        chosen, share = softmax_route(op, logits, None, form.k, form.normalize)
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
            separate_gate="fc3_experts_weights" in form.given,
        )

    attributes = [
        ir.AttrInt64("k", form.k),
        ir.AttrInt64("normalize_routing_weights", int(form.normalize)),
        ir.AttrInt64("use_sparse_mixer", 0),
        *activation_attributes(form.activation),
    ]
    return make_call_body(MOE, _INPUTS, form.given, ["output"], attributes, body, opset_version)


MOE_BODY = CallBody(read_moe, build_moe)
"""Row of the table of bodies."""
