"""MoEFusion: the experts that components describe -> `com.microsoft::MoE`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext, RewriteRule

from mobius_ir_rules.functions.expert_activation import Activation
from mobius_ir_rules.functions.moe import MOE
from mobius_ir_rules.functions.routed_experts import ROUTED_EXPERTS, read_routed_experts
from mobius_ir_rules.fusion._routing import GraphLogits, graph_logits, make_logits
from mobius_ir_rules.rule import Plan, Rule, refuse
from mobius_ir_rules.values import (
    MICROSOFT,
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
class _MoePlan(Plan):
    k: int
    experts: int
    dtype: ir.DataType
    activation: Activation
    logits: GraphLogits | None


class RoutedExpertsToMoe(Rule):
    """Let one operator route tokens and compute their experts.

    Before:

        y = mobius.moe.RoutedExperts <k, activation_type, ...> (x, chosen, share, fc1, fc2)

    After, where `chosen` and `share` are TopK and Softmax of `logits`:

        y = com.microsoft.MoE <k, activation_type, normalize_routing_weights = 1, ...> (
            x, logits, w1, "", fc2)

    After, for any other routing:

        best = ReduceMax (share, [1])
        log = Log (Max (Div (share, Max (best, 1e-30)), 1e-30))
        logits = ScatterElements <axis = 1> (-10000, chosen, log)
        z = com.microsoft.MoE <k, activation_type, normalize_routing_weights = 1, ...> (
            x, logits, w1, "", fc2)
        y = Mul (z, ReduceSum (share, [1]))

    Kernels want the rows of gate and linear part in turn. Where they come in halves, `w1` is `fc1`
    with its rows in that order, which is weights that move (`FoldWeights`), so `fc1` is a weight.
    Each attribute of the activation is written, whatever its default: ONNX Runtime once had those
    of one model as defaults.

    `share` is float32 and not negative, the tokens FLOAT, FLOAT16 or BFLOAT16, the activation one
    of relu, gelu (tanh), silu, swiglu and identity; shares that multiply an expert's input stay.
    """

    roots = (ROUTED_EXPERTS,)
    emits = (MOE,)

    def plan(self, node: ir.Node) -> _MoePlan:
        """Return what to do with the experts."""
        form = read_routed_experts(node)
        activation = form.activation
        if form.scale_input:
            refuse(
                f"{describe_node(node)} multiplies what goes into an expert by its share "
                "(scale_input=1); MoE multiplies what comes out.",
                node,
            )
        if activation.kind not in ACTIVATIONS or activation.limit_after:
            refuse(
                f"{describe_node(node)} has activation_type={activation.kind!r} and "
                f"swiglu_limit_after_activation={int(activation.limit_after)}; one of "
                f"{list(ACTIVATIONS)} and 0 is needed, which all kernels of MoE have.",
                node,
            )
        tokens, chosen, share, fc1 = node.inputs[:4]
        assert tokens is not None
        assert chosen is not None
        assert share is not None
        dtype, experts = tokens.dtype, static_dim(fc1, 0)
        if dtype is None or rank(tokens) not in (2, 3) or share.dtype != ir.DataType.FLOAT:
            refuse(
                f"The tokens of {describe_node(node)} have the type {dtype} and the shape "
                f"{tokens.shape}, its shares the type {share.dtype}; a known type and rank 2 or 3, "
                "and FLOAT, are needed.",
                node,
            )
        if experts is None:
            refuse(
                f"The number of experts of {describe_node(node)}, the first axis of 'fc1', is not "
                "known; a static one is needed.",
                node,
            )
        if activation.fusion == _IN_HALVES:
            _require_weights(node)
        logits = graph_logits(chosen, share, form.k, dtype)
        return _MoePlan(
            root=node,
            replaced=(node.outputs[0],),
            absorbed=logits.nodes if logits is not None else (),
            k=form.k,
            experts=experts,
            dtype=dtype,
            activation=activation,
            logits=logits,
        )

    def emit(self, op: RewriterContext, plan: _MoePlan) -> Sequence[ir.Value]:
        """Make the operator, its logits and what is left of the shares."""
        (result,) = plan.replaced
        tokens, chosen, share, fc1, fc2 = plan.root.inputs[:5]
        assert tokens is not None
        assert chosen is not None
        assert share is not None
        fc1_bias, fc2_bias = input_at(plan.root, 5), input_at(plan.root, 6)
        if plan.activation.fusion == _IN_HALVES:
            assert fc1 is not None
            fc1 = _interleaved(op, fc1)
            fc1_bias = None if fc1_bias is None else _interleaved(op, fc1_bias)
        if plan.logits is None:
            logits = make_logits(op, chosen, share, plan.experts, plan.dtype)
        else:
            logits = plan.logits.value
        normalize = plan.logits is None or plan.logits.normalize
        mixed = make(
            op,
            "MoE",
            [tokens, logits, fc1, fc1_bias, fc2, fc2_bias],
            like(result),
            domain=MICROSOFT,
            attributes=_attributes(plan, normalize=normalize),
            name=plan.root.name,
        )
        if plan.logits is not None:
            return [mixed]
        return [make(op, "Mul", [mixed, _sum_of_shares(op, tokens, share)], like(result))]


def _require_weights(node: ir.Node) -> None:
    for index, name in ((3, "fc1"), (5, "fc1_bias")):
        value = input_at(node, index)
        if value is not None and not is_weight(value):
            refuse(
                f"The input '{name}' of {describe_node(node)} is {describe_value(value)}; an "
                "initializer is needed, because its rows are put into another order.",
                node,
            )
        if value is not None and (value.shape is None or not value.shape.is_static()):
            refuse(
                f"The input '{name}' of {describe_node(node)} has the shape {value.shape}; a "
                "static one is needed, because its rows are put into another order.",
                node,
            )


def _attributes(plan: _MoePlan, *, normalize: bool) -> dict[str, object]:
    activation = plan.activation
    gated = activation.kind == "swiglu"
    return {
        "k": plan.k,
        "activation_type": activation.kind,
        "activation_alpha": activation.alpha,
        "activation_beta": activation.beta,
        "swiglu_fusion": _INTERLEAVED if gated else 0,
        # There is no value that means "no limit".
        "swiglu_limit": activation.limit if math.isfinite(activation.limit) else None,
        "normalize_routing_weights": int(normalize),
    }


def _interleaved(op: RewriterContext, weight: ir.Value) -> ir.Value:
    """Make the weight, or bias, whose rows come from the first and the second half in turn."""
    assert weight.shape is not None
    experts, rows, *rest = weight.shape.numpy()
    halves, turned = [experts, 2, rows // 2, *rest], [experts, rows // 2, 2, *rest]
    perm = [0, 2, 1, 3][: len(halves)]
    split = make(op, "Reshape", [weight, make_int64s(op, halves)], (weight.dtype, halves))
    pairs = make(op, "Transpose", [split], (weight.dtype, turned), attributes={"perm": perm})
    shape = make_int64s(op, [experts, rows, *rest])
    return make(op, "Reshape", [pairs, shape], like(weight))


def _sum_of_shares(op: RewriterContext, tokens: ir.Value, share: ir.Value) -> ir.Value:
    """Make the sum of each token's shares, `[..., 1]`, in the type of the tokens."""
    assert tokens.shape is not None
    assert tokens.dtype is not None
    rows = share.shape[0] if share.shape is not None else None
    total = make(
        op,
        "ReduceSum",
        [share, make_int64s(op, [1])],
        (ir.DataType.FLOAT, [rows, 1]),
        attributes={"keepdims": 1},
    )
    if tokens.dtype != ir.DataType.FLOAT:
        total = make(
            op, "Cast", [total], (tokens.dtype, [rows, 1]), attributes={"to": tokens.dtype}
        )
    if len(tokens.shape) == 2:
        return total
    batch, sequence, _ = tokens.shape
    axes = make(op, "Shape", [tokens], (ir.DataType.INT64, [2]), attributes={"start": 0, "end": 2})
    shape = make(
        op, "Concat", [axes, make_int64s(op, [1])], (ir.DataType.INT64, [3]), attributes={"axis": 0}
    )
    return make(op, "Reshape", [total, shape], (tokens.dtype, [batch, sequence, 1]))


def moe_rules() -> list[RewriteRule]:
    """Return the rules of this file, for `onnxscript.rewriter.rewrite`."""
    return [RoutedExpertsToMoe()]
