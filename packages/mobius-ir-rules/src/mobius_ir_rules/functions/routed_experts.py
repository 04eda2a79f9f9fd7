"""Body of `mobius.moe::RoutedExperts`: each token goes through the experts chosen for it.

    output = RoutedExperts(tokens, chosen, share, fc1, fc2, fc1_bias, fc2_bias;
                           k, scale_input, activation_type, ...)

Components say with one call what experts compute; rules recognise the operator (see
`mobius_ir_rules.fusion.moe`), everyone else inlines the body. No built graph leaves with this
domain. How experts are chosen is not its concern, other than that of `com.microsoft::MoE`.

* `tokens` is `[tokens, hidden]` or `[batch, sequence, hidden]`, of any float type.
* `chosen` is int64 `[tokens, k]`, the experts of a token, no two of them alike; `share` is float32
  `[tokens, k]`, how much each counts, none of them negative.
* `fc1` is `[experts, out, hidden]`, `fc2` `[experts, hidden, inner]`, in the type of `tokens`;
  biases, which may be left out, `[experts, out]` and `[experts, hidden]`. A gated expert has gate
  and linear part in one product, `out = 2 * inner`.
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

_INPUTS = ("tokens", "chosen", "share", "fc1", "fc2", "fc1_bias", "fc2_bias")


@dataclasses.dataclass(frozen=True)
class RoutedExpertsForm:
    """What decides the nodes of the body.

    `dtype` and `hidden` are element type and width of the tokens, `None` if not known, and so is
    the number of `experts`.
    """

    given: tuple[str, ...]
    dtype: ir.DataType | None
    hidden: int | None
    experts: int | None
    k: int
    scale_input: bool
    activation: Activation


def read_routed_experts(node: ir.Node) -> RoutedExpertsForm:
    """Return the form of the call.

    Raises:
        RefusedError: If the call breaks the operator's contract.
    """
    given = given_inputs(node, _INPUTS)
    require_inputs(node, given, _INPUTS[:5])
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
    )


def build_routed_experts(form: RoutedExpertsForm, opset_version: int) -> ir.Function:
    """Return the body of RoutedExperts for the form and `opset_version`."""

    def body(op: OpBuilder, inputs: Mapping[str, ir.Value]) -> Any:
        def weights(op: OpBuilder, layer: str, tiles: Tiles) -> Any:
            return op.Gather(inputs[layer], tiles.expert)

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
    return make_call_body(
        ROUTED_EXPERTS, _INPUTS, form.given, ["output"], attributes, body, opset_version
    )


ROUTED_EXPERTS_BODY = CallBody(read_routed_experts, build_routed_experts)
"""Row of the table of bodies."""
