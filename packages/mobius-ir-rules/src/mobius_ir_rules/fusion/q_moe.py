"""QMoEFusion: the experts that components describe, as integers -> `com.microsoft::QMoE`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext, RewriteRule

from mobius_ir_rules.functions.q_moe import Q_MOE
from mobius_ir_rules.functions.routed_experts import ROUTED_EXPERTS, read_routed_experts
from mobius_ir_rules.fusion._experts import (
    MixturePlan,
    activation_as_kernels_have_it,
    mixture_plan,
    operands,
)
from mobius_ir_rules.fusion._routing import make_scattered
from mobius_ir_rules.rule import Rule, refuse
from mobius_ir_rules.values import MICROSOFT, describe_node, like, make

_INT8_ACTIVATIONS = 4  # of `accuracy_level`: others mean that none are rounded
_NONE: Mapping[str, str] = MappingProxyType({})


class RoutedExpertsToQMoe(Rule):
    """Let one operator route tokens and compute their experts, which are integers.

    Before:

        y = mobius.moe.RoutedExperts <k, activation_type, fc1_bits, fc1_block_size, ...> (
            x, chosen, share, fc1, fc2, "", "", fc1_scales, fc2_scales)

    After, where `chosen` and `share` are TopK and Softmax of `logits`:

        y = com.microsoft.QMoE <k, activation_type, normalize_routing_weights = 1,
                                expert_weight_bits, block_size, weights_prepacked = 0, ...> (
            x, logits, w1, s1, "", fc2, fc2_scales)

    After, for any other routing:

        scattered = ScatterElements <axis = 1> (0, chosen, share)
        y = com.microsoft.QMoE <k, normalize_routing_weights = 0, ...> (
            x, scattered, w1, s1, "", fc2, fc2_scales, "", "", "", "", "", "", "", scattered)

    Shares are not negative, so the `k` greatest of `scattered` are those chosen, but for some whose
    share is zero: whichever is taken in their place counts nothing. Whoever routes by the softmax
    of all logits gets there too: kernels disagree on `normalize_routing_weights = 0` without
    `router_weights`.

    Rows of gate and linear part that come in halves move as `MoEFusion` moves them, with their
    scales and zero points. Both layers have one format. `accuracy_level` is written where it is 4,
    which lets kernels round what integers are multiplied with to 8 bits.
    """

    roots = (ROUTED_EXPERTS,)
    emits = (Q_MOE,)

    def __init__(self, *, accuracy_level: int = 0, wrong: Mapping[str, str] = _NONE) -> None:
        """Create the rule; see `q_moe_rules`."""
        self._accuracy_level = _INT8_ACTIVATIONS if accuracy_level == _INT8_ACTIVATIONS else 0
        self._wrong = MappingProxyType(dict(wrong))
        super().__init__()

    def plan(self, node: ir.Node) -> MixturePlan | None:
        """Return what to do with the experts, `None` where they are floats."""
        form = read_routed_experts(node)
        if not any(form.formats):
            return None
        first, second = form.formats
        if first is None or first != second:
            refuse(
                f"The layers of {describe_node(node)} have the formats {first} and {second}; "
                "QMoE has one for both.",
                node,
            )
        plan = mixture_plan(node, form, "QMoE", only_normalized=True)
        settings = {
            f"expert_weight_bits={first.bits}",
            f"block_size={first.block_size}",
            f"accuracy_level={self._accuracy_level}",
        }
        for use, reason in self._wrong.items():
            if settings.issuperset(use.split(", ")):
                refuse(
                    f"QMoE of {describe_node(node)} would have {use}, which the target does not "
                    f"run: {reason}.",
                    node,
                    inherent=True,
                )
        return plan

    def emit(self, op: RewriterContext, plan: MixturePlan) -> Sequence[ir.Value]:
        """Make the operator and, where it is needed, what it routes by."""
        (result,) = plan.replaced
        form = plan.form.formats[0]
        assert form is not None
        if plan.logits is not None:
            probs, mixing = plan.logits.value, None
        else:
            probs = mixing = make_scattered(op, plan.chosen, plan.share, plan.experts, plan.dtype)
        layers = operands(op, plan.root, plan.form.activation)
        inputs = [
            plan.tokens,
            probs,
            *(layers.get(f"fc1{part}") for part in ("", "_scales", "_bias")),
            *(layers.get(f"fc2{part}") for part in ("", "_scales", "_bias")),
            *[None] * 3,
            *(layers.get(f"{layer}_zero_points") for layer in ("fc1", "fc2")),
            None,
            mixing,
        ]
        attributes = {
            "k": plan.k,
            **activation_as_kernels_have_it(plan.form.activation),
            "normalize_routing_weights": int(mixing is None),
            "expert_weight_bits": form.bits,
            "block_size": form.block_size,
            "quant_type": "int",
            "weights_prepacked": 0,
            "accuracy_level": self._accuracy_level or None,
        }
        return [
            make(
                op,
                "QMoE",
                inputs,
                like(result),
                domain=MICROSOFT,
                attributes=attributes,
                name=plan.root.name,
            )
        ]


def q_moe_rules(*, accuracy_level: int = 0, wrong: Mapping[str, str] = _NONE) -> list[RewriteRule]:
    """Return the rules of this file, for `onnxscript.rewriter.rewrite`.

    Args:
        accuracy_level: What a kernel may round the other operand to, as for `MatMulNBits`; for
            QMoE everything but 4 means: not at all.
        wrong: Values of `expert_weight_bits`, `block_size` and `accuracy_level` that the target
            does not run, as `name=value`, several joined by ", " where only all of them together
            are wrong; each with the reason.
    """
    return [RoutedExpertsToQMoe(accuracy_level=accuracy_level, wrong=wrong)]
