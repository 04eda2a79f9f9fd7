"""`STAGES`: the optimisation pipeline as a table; `plan`: the rows that run for a target.

Row order is execution order. `when` reads capabilities, dtype and role, never a provider's name;
`make` makes fresh passes, so that runs share nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import onnx_ir as ir
import onnx_ir.passes.common as common_passes
from onnxscript.rewriter import RewriteRule

from mobius.dtypes import parse_dtype
from mobius.lowerings import (
    BOOLEAN_MASK,
    FUSED_MAT_MUL,
    LOWERINGS,
    MAT_MUL_N_BITS,
    BringDown,
    BringUp,
    Lowering,
    fuse_matmul,
    lowers_mat_mul_n_bits,
)
from mobius.op_support import SINCE_VERSION, runs, wrong_attributes, wrong_uses
from mobius.opsets import parse_opset
from mobius.quantize_stage import Quantize
from mobius.report import LeftOut
from mobius.roles import Role, parse_role
from mobius.stage import Phase, Stage, Target
from mobius.stage_pass import DropFunctions, RuleGroup, Steps, UniqueNames
from mobius.wrong_calls import InlineWrongCalls
from mobius_eps import EpCapabilities, get_ep
from mobius_ir_rules.functions import FUNCTIONS
from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.functions.calls import CallBody
from mobius_ir_rules.fusion.attention import attention_rules
from mobius_ir_rules.fusion.bias_gelu import OPERATORS as BIAS_GELU_OPERATORS
from mobius_ir_rules.fusion.bias_gelu import bias_gelu_rules
from mobius_ir_rules.fusion.fused_mat_mul import fused_matmul_rules
from mobius_ir_rules.fusion.gelu import gelu_rules
from mobius_ir_rules.fusion.group_query_attention import group_query_attention_rules
from mobius_ir_rules.fusion.layer_normalization import layer_normalization_rules
from mobius_ir_rules.fusion.moe import moe_rules
from mobius_ir_rules.fusion.pack_qkv import pack_qkv_rules
from mobius_ir_rules.fusion.packed_multi_head_attention import packed_multi_head_attention_rules
from mobius_ir_rules.fusion.q_moe import q_moe_rules
from mobius_ir_rules.fusion.recurrence import recurrence_rules
from mobius_ir_rules.fusion.rms_normalization import rms_normalization_rules
from mobius_ir_rules.fusion.rotary_embedding import rotary_embedding_rules
from mobius_ir_rules.fusion.skip_layer_norm import skip_layer_norm_rules
from mobius_ir_rules.fusion.skip_norm import skip_norm_rules
from mobius_ir_rules.lowering.separate_rope import separate_rope_rules
from mobius_ir_rules.lowering.unpack_qkv import unpack_qkv_rules
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

__all__ = ["GQA_FUSION", "STAGES", "Phase", "Stage", "Target", "plan", "plan_for"]

GQA_FUSION = "GQAFusion"

_MICROSOFT = "com.microsoft"


def plan(
    ep: str | EpCapabilities,
    dtype: str | ir.DataType,
    role: str = Role.DECODER,
    *,
    opset: int | None = None,
) -> tuple[Stage, ...]:
    """Return the stages that would run, in order, without a model.

    Args:
        ep: Name of a registered execution provider, or its capabilities.
        dtype: Element type of weights and activations.
        role: What the model is for.
        opset: Newest opset that the result may be in; `None` for whatever the provider runs.

    Raises:
        ValueError: if one of them is unknown.
    """
    capabilities = ep if isinstance(ep, EpCapabilities) else get_ep(ep)
    return plan_for(Target(capabilities, parse_dtype(dtype), parse_role(role), parse_opset(opset)))


def plan_for(target: Target) -> tuple[Stage, ...]:
    """Return the stages that run for `target`, in order."""
    return tuple(stage for stage in STAGES if stage.when(target))


def left_out(target: Target) -> tuple[LeftOut, ...]:
    """Return the stages that do not run for `target`, each with the reason."""
    return tuple(
        LeftOut(stage.phase, stage.name, stage.why_left_out(target))
        for stage in STAGES
        if not stage.when(target)
    )


def _always(target: Target) -> bool:
    del target
    return True


def _fuses_gqa(target: Target) -> bool:
    return (
        target.role is Role.DECODER
        and target.dtype in target.capabilities.gqa_dtypes
        and runs(target, _MICROSOFT, "GroupQueryAttention")
    )


def _packs_qkv(target: Target) -> bool:
    return _fuses_gqa(target) and target.dtype in target.capabilities.qkv_pack_dtypes


def _separates_rope(target: Target) -> bool:
    return _fuses_gqa(target) and not target.capabilities.supports_fused_rope


def _runs_any(*op_types: str) -> Callable[[Target], bool]:
    """Return whether a target runs one of the operators of com.microsoft that a stage makes."""
    return lambda target: any(runs(target, _MICROSOFT, op_type) for op_type in op_types)


def _fuses_gelu(target: Target) -> bool:
    """Return whether the target has a GELU; LowerGelu gives it the one that it has."""
    return target.working_opset >= SINCE_VERSION["", "Gelu"] and (
        runs(target, "", "Gelu")
        or (runs(target, _MICROSOFT, "Gelu") and runs(target, _MICROSOFT, "FastGelu"))
    )


def _avoids_loops(target: Target) -> bool:
    return not target.capabilities.fast_loops and runs(target, _MICROSOFT, "LinearAttention")


def _is_old(target: Target) -> bool:
    return target.model_opset < target.max_opset


def _lowers_opset(target: Target) -> bool:
    return target.result_opset < target.working_opset


def _packs_attention(target: Target) -> bool:
    return target.role is not Role.DECODER and runs(target, _MICROSOFT, "PackedMultiHeadAttention")


def _from_primitives(
    factory: Callable[[], Sequence[RewriteRule]],
) -> Callable[[Target], RuleGroup]:
    """Return a maker of a `RuleGroup` after which the next one knows types and shapes."""

    def make(target: Target) -> RuleGroup:
        del target
        return RuleGroup(
            factory(), [EliminateCommonSubexpressions(), RemoveUnused(), InferShapes()]
        )

    return make


def _rule_group(factory: Callable[[], Sequence[RewriteRule]]) -> Callable[[Target], RuleGroup]:
    """Return a maker of a `RuleGroup`, whatever the target."""

    def make(target: Target) -> RuleGroup:
        del target
        return RuleGroup(factory(), [RemoveUnused()])

    return make


# What these two make for each layer alike, such as sequence lengths, is merged within the stage,
# so that its numbers are those of what stays.


def _make_gqa_fusion(target: Target) -> RuleGroup:
    rules = group_query_attention_rules(
        refuse_attributes=wrong_attributes(target, _MICROSOFT, "GroupQueryAttention"),
        explicit_scale=True,  # some kernels have no default
        # Where rotary is taken out again, it must find the positions that the graph has.
        explicit_positions=_separates_rope(target),
        padding_side=target.padding_side,
    )
    return RuleGroup(rules, [EliminateCommonSubexpressions(), RemoveUnused()])


def _make_bias_gelu(target: Target) -> RuleGroup:
    operators = [name for name in BIAS_GELU_OPERATORS if runs(target, _MICROSOFT, name)]
    return RuleGroup(bias_gelu_rules(operators), [RemoveUnused()])


def _make_separate_rope(target: Target) -> RuleGroup:
    del target
    return RuleGroup(separate_rope_rules(), [EliminateCommonSubexpressions(), RemoveUnused()])


def _quantizes(target: Target) -> bool:
    return target.quantization is not None


def _make_quantize(target: Target) -> Quantize:
    assert target.quantization is not None
    return Quantize(target.quantization, _accuracy_level(target))


def _accuracy_level(target: Target) -> int:
    level = None if target.quantization is None else target.quantization.accuracy_level
    return target.capabilities.default_int4_accuracy_level if level is None else level


def _fuses_float_matmul(target: Target) -> bool:
    return not _quantizes(target) and runs(target, _MICROSOFT, "FusedMatMul")


def _fuses_left_matmul(target: Target) -> bool:
    return _quantizes(target) and runs(target, _MICROSOFT, "FusedMatMul")


def _fuses_float_moe(target: Target) -> bool:
    return not _quantizes(target) and runs(target, _MICROSOFT, "MoE")


def _fuses_quantized_moe(target: Target) -> bool:
    return _quantizes(target) and any(runs(target, _MICROSOFT, name) for name in ("MoE", "QMoE"))


def _make_quantized_moe(target: Target) -> RuleGroup:
    rules = list(moe_rules()) if runs(target, _MICROSOFT, "MoE") else []
    if runs(target, _MICROSOFT, "QMoE"):
        wrong = wrong_uses(target, _MICROSOFT, "QMoE")
        rules += q_moe_rules(accuracy_level=_accuracy_level(target), wrong=wrong)
    return RuleGroup(rules, [RemoveUnused()])


def _make_cleanup(target: Target) -> ir.passes.PassBase:
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


def _make_inline(target: Target) -> ir.passes.PassBase:
    def is_lacking(function: ir.Function) -> bool:
        return not runs(target, function.domain, function.name)

    return Steps(
        AttachFunctions(_bodies(target, run=False), overloads=True),
        InlineFunctions(is_lacking),
        InlineWrongCalls(target),
        *fuse_matmul(target),
        RemoveUnused(),
    )


def _make_fold(target: Target) -> ir.passes.PassBase:
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


_DECODER = "a decoder, and GroupQueryAttention in the dtype"
_ROTARY_INSIDE = f"{_DECODER}, but without rotary embeddings inside"
_FLOATS = "no weights that become integers"
_INTEGERS = "weights that become integers (quantize)"


def _lowering(phase: Phase, lowering: Lowering, when: Callable[[Target], bool]) -> Stage:
    return Stage(phase, lowering.stage_name, when, lowering.make, lowering.needs)


STAGES: tuple[Stage, ...] = (
    Stage(
        Phase.CLEANUP,
        "RaiseOpset",
        _is_old,
        BringUp,
        "a model of an older opset than the target runs",
        ("max_opset",),
    ),
    Stage(Phase.CLEANUP, "Cleanup", _always, _make_cleanup),
    # First what exporters write out as primitives; what the target lacks of it is lowered again.
    *(
        Stage(Phase.FUSION, name, _always, _from_primitives(factory))
        for name, factory in (
            ("RMSNormFusion", rms_normalization_rules),
            ("LayerNormFusion", layer_normalization_rules),
            ("RotaryFusion", rotary_embedding_rules),
            ("AttentionFusion", attention_rules),
        )
    ),
    Stage(Phase.FUSION, GQA_FUSION, _fuses_gqa, _make_gqa_fusion, _DECODER, ("gqa_dtypes",)),
    # Before PackQKV: weights in the layout that they are stored in are joined without a transpose.
    Stage(
        Phase.FUSION,
        "FusedMatMul",
        _fuses_float_matmul,
        _rule_group(fused_matmul_rules),
        f"FusedMatMul in the dtype, and {_FLOATS}",
        ("supports_fused_matmul",),
    ),
    Stage(
        Phase.FUSION,
        "PackQKV",
        _packs_qkv,
        _rule_group(pack_qkv_rules),
        f"{_DECODER}, with packed queries, keys and values",
        ("gqa_dtypes", "qkv_pack_dtypes"),
    ),
    Stage(
        Phase.FUSION,
        "SkipNorm",
        _runs_any("SkipSimplifiedLayerNormalization"),
        _rule_group(skip_norm_rules),
        "SkipSimplifiedLayerNormalization in the dtype",
        ("supports_skip_layer_norm",),
    ),
    Stage(
        Phase.FUSION,
        "SkipLayerNorm",
        _runs_any("SkipLayerNormalization"),
        _rule_group(skip_layer_norm_rules),
        "SkipLayerNormalization in the dtype",
        ("supports_skip_layer_norm",),
    ),
    Stage(
        Phase.FUSION,
        "RecurrenceFusion",
        _avoids_loops,
        _rule_group(recurrence_rules),
        "a target whose loops are slow, and LinearAttention in the dtype",
        ("fast_loops",),
    ),
    Stage(
        Phase.FUSION,
        "MoEFusion",
        _fuses_float_moe,
        _rule_group(moe_rules),
        f"MoE in the dtype, and {_FLOATS}",
        ("supports_fused_moe",),
    ),
    Stage(
        Phase.FUSION,
        "GeluFusion",
        _fuses_gelu,
        _rule_group(gelu_rules),
        "Gelu, or Gelu and FastGelu of com.microsoft, in the dtype",
    ),
    Stage(
        Phase.FUSION,
        "PackedMultiHeadAttention",
        _packs_attention,
        _rule_group(packed_multi_head_attention_rules),
        "a model that is no decoder, and PackedMultiHeadAttention in the dtype",
        ("supports_packed_multi_head_attention",),
    ),
    Stage(
        Phase.FUSION,
        "BiasGelu",
        _runs_any(*BIAS_GELU_OPERATORS),
        _make_bias_gelu,
        f"{' or '.join(BIAS_GELU_OPERATORS)} of com.microsoft in the dtype",
    ),
    # Behind all that packs weights, so that what is packed is quantized as one.
    Stage(Phase.FUSION, "Quantize", _quantizes, _make_quantize, _INTEGERS),
    # FusedMatMul of a build with integers: no MatMulNBits scales, or reads what is transposed.
    Stage(
        Phase.FUSION,
        "FusedFloatMatMul",
        _fuses_left_matmul,
        _rule_group(fused_matmul_rules),
        f"{_INTEGERS}, and FusedMatMul in the dtype",
    ),
    # MoEFusion of a build with integers: whether experts are some is known now.
    Stage(
        Phase.FUSION,
        "QMoEFusion",
        _fuses_quantized_moe,
        _make_quantized_moe,
        f"{_INTEGERS}, and MoE or QMoE in the dtype",
    ),
    _lowering(Phase.INLINE, MAT_MUL_N_BITS, lowers_mat_mul_n_bits),
    _lowering(Phase.INLINE, BOOLEAN_MASK, BOOLEAN_MASK.needed),
    _lowering(Phase.INLINE, FUSED_MAT_MUL, FUSED_MAT_MUL.needed),
    Stage(Phase.INLINE, "InlinePass", _always, _make_inline),
    Stage(
        Phase.LOWERING,
        "SeparateRoPE",
        _separates_rope,
        _make_separate_rope,
        _ROTARY_INSIDE,
        ("gqa_dtypes", "supports_fused_rope"),
    ),
    Stage(
        Phase.LOWERING,
        "UnpackQKV",
        _separates_rope,
        _rule_group(unpack_qkv_rules),
        _ROTARY_INSIDE,
        ("gqa_dtypes", "supports_fused_rope"),
    ),
    *(_lowering(Phase.LOWERING, each, each.needed) for each in LOWERINGS),
    Stage(
        Phase.LOWERING,
        "LowerOpset",
        _lowers_opset,
        BringDown,
        "a model of a newer opset than the target runs",
        ("max_opset",),
    ),
    Stage(Phase.FOLD, "Fold", _always, _make_fold),
)
"""Every stage of every target, in the order in which they run."""
