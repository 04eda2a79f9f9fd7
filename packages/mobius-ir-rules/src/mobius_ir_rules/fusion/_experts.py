"""What `MoE` and `QMoE` take of experts alike: a call in -> refusals, attributes, rows in turn."""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.functions.expert_activation import Activation
from mobius_ir_rules.functions.routed_experts import INPUTS, LAYERS, RoutedExpertsForm
from mobius_ir_rules.fusion._routing import GraphLogits, graph_logits
from mobius_ir_rules.rule import Plan, refuse
from mobius_ir_rules.values import (
    describe_node,
    describe_value,
    input_at,
    is_weight,
    like,
    make,
    make_int64s,
    rank,
    static_dim,
)

ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")
"""What every kernel of MoE computes, according to its documentation; others are CUDA's alone."""

_INTERLEAVED, _IN_HALVES = 1, 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixturePlan(Plan):
    """A call of `RoutedExperts` that a kernel can compute.

    Attributes:
        tokens: What experts read.
        chosen: Which experts a token goes to.
        share: The weight of each, float32.
        k: How many experts a token goes to.
        experts: How many there are.
        dtype: Element type of the tokens.
        form: What else the call says.
        logits: What the operator can route by itself; `None` for another routing.
    """

    tokens: ir.Value
    chosen: ir.Value
    share: ir.Value
    k: int
    experts: int
    dtype: ir.DataType
    form: RoutedExpertsForm
    logits: GraphLogits | None


def mixture_plan(
    node: ir.Node, form: RoutedExpertsForm, operator: str, *, only_normalized: bool = False
) -> MixturePlan:
    """Return the plan of a call; refuse what no kernel of the operator computes.

    Args:
        node: A call of `RoutedExperts`.
        form: Its form.
        operator: `MoE` or `QMoE`, for reasons.
        only_normalized: The operator routes only where the shares of a token have the sum 1.
    """
    experts = _require_experts(node, form, operator)
    tokens, chosen, share = node.inputs[:3]
    assert tokens is not None
    assert tokens.dtype is not None
    assert chosen is not None
    assert share is not None
    logits = graph_logits(chosen, share, form.k, tokens.dtype)
    if logits is not None and only_normalized and not logits.normalize:
        logits = None
    return MixturePlan(
        root=node,
        replaced=(node.outputs[0],),
        absorbed=logits.nodes if logits is not None else (),
        tokens=tokens,
        chosen=chosen,
        share=share,
        k=form.k,
        experts=experts,
        dtype=tokens.dtype,
        form=form,
        logits=logits,
    )


def _require_experts(node: ir.Node, form: RoutedExpertsForm, operator: str) -> int:
    """Return the number of experts; refuse what no kernel of the operator computes."""
    activation = form.activation
    if form.scale_input:
        refuse(
            f"{describe_node(node)} multiplies what goes into an expert by its share "
            f"(scale_input=1); {operator} multiplies what comes out.",
            node,
        )
    if activation.kind not in ACTIVATIONS or activation.limit_after:
        refuse(
            f"{describe_node(node)} has activation_type={activation.kind!r} and "
            f"swiglu_limit_after_activation={int(activation.limit_after)}; one of "
            f"{list(ACTIVATIONS)} and 0 is needed, which all kernels of {operator} have.",
            node,
        )
    tokens, _, share, fc1 = node.inputs[:4]
    assert tokens is not None
    assert share is not None
    if tokens.dtype is None or rank(tokens) not in (2, 3) or share.dtype != ir.DataType.FLOAT:
        refuse(
            f"The tokens of {describe_node(node)} have the type {tokens.dtype} and the shape "
            f"{tokens.shape}, its shares the type {share.dtype}; a known type and rank 2 or 3, "
            "and FLOAT, are needed.",
            node,
        )
    experts = static_dim(fc1, 0)
    if experts is None:
        refuse(
            f"The number of experts of {describe_node(node)}, the first axis of 'fc1', is not "
            "known; a static one is needed.",
            node,
        )
    if activation.fusion == _IN_HALVES:
        _require_weights(node)
    return experts


def operands(op: RewriterContext, node: ir.Node, activation: Activation) -> dict[str, ir.Value]:
    """Return the operands of the layers by name, those of `fc1` with gate and linear part in turn.

    Kernels want the rows of gate and linear part in turn. Where they come in halves, every row
    moves with what belongs to it: its scales and zero points.
    """
    found: dict[str, ir.Value] = {}
    for index, name in enumerate(INPUTS):
        value = input_at(node, index)
        if value is not None and name[:3] in LAYERS:
            turns = name.startswith("fc1") and activation.fusion == _IN_HALVES
            found[name] = _interleaved(op, value) if turns else value
    return found


def activation_as_kernels_have_it(activation: Activation) -> dict[str, object]:
    """Return the attributes of the activation, whatever the operator's defaults.

    ONNX Runtime once had those of one model as defaults.
    """
    return {
        "activation_type": activation.kind,
        "activation_alpha": activation.alpha,
        "activation_beta": activation.beta,
        "swiglu_fusion": _INTERLEAVED if activation.kind == "swiglu" else 0,
        # There is no value that means "no limit".
        "swiglu_limit": activation.limit if math.isfinite(activation.limit) else None,
    }


def _require_weights(node: ir.Node) -> None:
    for index, name in enumerate(INPUTS):
        value = input_at(node, index)
        if value is None or not name.startswith("fc1"):
            continue
        if not is_weight(value):
            refuse(
                f"The input '{name}' of {describe_node(node)} is {describe_value(value)}; an "
                "initializer is needed, because its rows are put into another order.",
                node,
            )
        if value.shape is None or not value.shape.is_static():
            refuse(
                f"The input '{name}' of {describe_node(node)} has the shape {value.shape}; a "
                "static one is needed, because its rows are put into another order.",
                node,
            )


def _interleaved(op: RewriterContext, weight: ir.Value) -> ir.Value:
    """Make the value whose rows come from the first and the second half in turn."""
    assert weight.shape is not None
    experts, rows, *rest = weight.shape.numpy()
    halves, turned = [experts, 2, rows // 2, *rest], [experts, rows // 2, 2, *rest]
    perm = [0, 2, 1, 3][: len(halves)]
    split = make(op, "Reshape", [weight, make_int64s(op, halves)], (weight.dtype, halves))
    pairs = make(op, "Transpose", [split], (weight.dtype, turned), attributes={"perm": perm})
    shape = make_int64s(op, [experts, rows, *rest])
    return make(op, "Reshape", [pairs, shape], like(weight))
