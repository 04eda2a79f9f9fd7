"""What a stage of the pipeline is made of, for a target."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import onnx_ir as ir
import onnx_ir.passes.common as common_passes
from onnxscript.rewriter import RewriteRule

from mobius.lowerings import fuse_matmul
from mobius.op_support import runs, wrong_attributes, wrong_uses
from mobius.quantize_stage import Quantize
from mobius.stage import Target
from mobius.stage_conditions import separates_rope
from mobius.stage_pass import DropFunctions, RuleGroup, Steps, UniqueNames
from mobius.wrong_calls import InlineWrongCalls
from mobius_ir_rules.functions import FUNCTIONS
from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.functions.calls import CallBody
from mobius_ir_rules.fusion.bias_gelu import OPERATORS as BIAS_GELU_OPERATORS
from mobius_ir_rules.fusion.bias_gelu import bias_gelu_rules
from mobius_ir_rules.fusion.group_query_attention import group_query_attention_rules
from mobius_ir_rules.fusion.moe import moe_rules
from mobius_ir_rules.fusion.q_moe import q_moe_rules
from mobius_ir_rules.lowering.separate_rope import separate_rope_rules
from mobius_ir_rules.passes import (
    ClearMetadata,
    CompleteOpsetImports,
    DeduplicateInitializers,
    EliminateCommonSubexpressions,
    EliminateIdentity,
    FoldConstants,
    FoldWeights,
    InferShapes,
    InlineFunctions,
    RemoveUnused,
)

_MICROSOFT = "com.microsoft"


def from_primitives(
    factory: Callable[[], Sequence[RewriteRule]],
) -> Callable[[Target], RuleGroup]:
    """Return a maker of a `RuleGroup` after which the next one knows types and shapes."""

    def make(target: Target) -> RuleGroup:
        del target
        return RuleGroup(
            factory(), [EliminateCommonSubexpressions(), RemoveUnused(), InferShapes()]
        )

    return make


def rule_group(factory: Callable[[], Sequence[RewriteRule]]) -> Callable[[Target], RuleGroup]:
    """Return a maker of a `RuleGroup`, whatever the target."""

    def make(target: Target) -> RuleGroup:
        del target
        return RuleGroup(factory(), [RemoveUnused()])

    return make


# What attention's stages make for each layer alike, such as sequence lengths, is merged within the
# stage, so that its numbers are those of what stays.


def make_gqa_fusion(target: Target) -> RuleGroup:
    """Fuse attention with what the target has of GroupQueryAttention."""
    rules = group_query_attention_rules(
        refuse_attributes=wrong_attributes(target, _MICROSOFT, "GroupQueryAttention"),
        explicit_scale=True,  # some kernels have no default
        # Where rotary is taken out again, it must find the positions that the graph has.
        explicit_positions=separates_rope(target),
        padding_side=target.padding_side,
    )
    return RuleGroup(rules, [EliminateCommonSubexpressions(), RemoveUnused()])


def make_bias_gelu(target: Target) -> RuleGroup:
    """Fuse a bias with the GELUs that the target has."""
    operators = [name for name in BIAS_GELU_OPERATORS if runs(target, _MICROSOFT, name)]
    return RuleGroup(bias_gelu_rules(operators), [RemoveUnused()])


def make_separate_rope(target: Target) -> RuleGroup:
    """Take rotary embeddings out of attention again."""
    del target
    return RuleGroup(separate_rope_rules(), [EliminateCommonSubexpressions(), RemoveUnused()])


def make_quantize(target: Target) -> Quantize:
    """Make weights integers."""
    assert target.quantization is not None
    return Quantize(target.quantization, _accuracy_level(target))


def _accuracy_level(target: Target) -> int:
    level = None if target.quantization is None else target.quantization.accuracy_level
    return target.capabilities.default_int4_accuracy_level if level is None else level


def make_quantized_moe(target: Target) -> RuleGroup:
    """Fuse experts that are integers, and those that stayed floats."""
    rules = list(moe_rules()) if runs(target, _MICROSOFT, "MoE") else []
    if runs(target, _MICROSOFT, "QMoE"):
        wrong = wrong_uses(target, _MICROSOFT, "QMoE")
        rules += q_moe_rules(accuracy_level=_accuracy_level(target), wrong=wrong)
    return RuleGroup(rules, [RemoveUnused()])


def make_cleanup(target: Target) -> ir.passes.PassBase:
    """Bring a model into the form that rules read."""

    def is_foreign(function: ir.Function) -> bool:
        # Calls of known operators must stay until the rules have seen them.
        known = (function.domain, function.name) in FUNCTIONS
        return not known and not runs(target, function.domain, function.name)

    return Steps(
        CompleteOpsetImports(),
        common_passes.TopologicalSortPass(),  # runtimes accept any order, rules do not
        InlineFunctions(is_foreign),
        EliminateIdentity(),
        EliminateCommonSubexpressions(),
        DeduplicateInitializers(),
        FoldConstants(),
        InferShapes(),
        RemoveUnused(),
        ClearMetadata(),
        UniqueNames(),
    )


def make_inline(target: Target) -> ir.passes.PassBase:
    """Expand what the target lacks."""

    def is_lacking(function: ir.Function) -> bool:
        return not runs(target, function.domain, function.name)

    return Steps(
        AttachFunctions(_bodies(target, run=False), overloads=True),
        InlineFunctions(is_lacking),
        InlineWrongCalls(target),
        *fuse_matmul(target),
        RemoveUnused(),
    )


def make_fold(target: Target) -> ir.passes.PassBase:
    """Compute what is known, and write the result as the target wants it."""
    return Steps(
        FoldWeights(),
        FoldConstants(),
        *_kept_bodies(target),
        EliminateIdentity(),
        EliminateCommonSubexpressions(),
        RemoveUnused(),
        UniqueNames(),
        ClearMetadata(),
    )


def _kept_bodies(target: Target) -> list[ir.passes.InPlacePass]:
    """Return the passes that give the operators that stay their bodies, and write calls in full.

    Whoever does not know such an operator can expand its body; the target itself need not.
    """
    bodies = _bodies(target, run=True)
    if target.capabilities.keeps_function_bodies:
        return [AttachFunctions(bodies, log_level=logging.INFO)]
    # A body made for the form of a call tells nothing about how to complete the call.
    plain = {name: body for name, body in bodies.items() if not isinstance(body, CallBody)}
    return [AttachFunctions(plain, log_level=logging.INFO), DropFunctions(bodies)]


def _bodies(target: Target, *, run: bool) -> dict[tuple[str, str], Callable[[int], ir.Function]]:
    """Return the bodies of the operators that the target runs, or of those that it lacks."""
    return {
        operator: body for operator, body in FUNCTIONS.items() if runs(target, *operator) is run
    }
