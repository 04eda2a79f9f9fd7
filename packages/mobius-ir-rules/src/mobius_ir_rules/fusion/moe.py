"""MoEFusion: the experts that components describe -> `com.microsoft::MoE`."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext, RewriteRule

from mobius_ir_rules.functions.moe import MOE
from mobius_ir_rules.functions.routed_experts import ROUTED_EXPERTS, read_routed_experts
from mobius_ir_rules.fusion._experts import (
    MixturePlan,
    activation_as_kernels_have_it,
    mixture_plan,
    operands,
)
from mobius_ir_rules.fusion._routing import make_logits
from mobius_ir_rules.rule import Rule
from mobius_ir_rules.values import MICROSOFT, like, make, make_int64s


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

    def plan(self, node: ir.Node) -> MixturePlan | None:
        """Return what to do with the experts, `None` where they are integers."""
        form = read_routed_experts(node)
        if any(form.formats):
            return None  # integers are QMoE's
        return mixture_plan(node, form, "MoE")

    def emit(self, op: RewriterContext, plan: MixturePlan) -> Sequence[ir.Value]:
        """Make the operator, its logits and what is left of the shares."""
        (result,) = plan.replaced
        layers = operands(op, plan.root, plan.form.activation)
        if plan.logits is None:
            logits = make_logits(op, plan.chosen, plan.share, plan.experts, plan.dtype)
        else:
            logits = plan.logits.value
        normalize = plan.logits is None or plan.logits.normalize
        mixed = make(
            op,
            "MoE",
            [plan.tokens, logits, *map(layers.get, ("fc1", "fc1_bias", "fc2", "fc2_bias"))],
            like(result),
            domain=MICROSOFT,
            attributes={
                "k": plan.k,
                **activation_as_kernels_have_it(plan.form.activation),
                "normalize_routing_weights": int(normalize),
            },
            name=plan.root.name,
        )
        if plan.logits is not None:
            return [mixed]
        return [make(op, "Mul", [mixed, _sum_of_shares(op, plan.tokens, plan.share)], like(result))]


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
