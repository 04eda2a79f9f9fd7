"""`STAGES`: the optimisation pipeline as a table; `plan`: the rows that run for a target.

Row order is execution order. `when` reads capabilities, dtype and role, never a provider's name;
`make` makes fresh passes, so that runs share nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from mobius.dtypes import parse_dtype
from mobius.lowerings import (
    BOOLEAN_MASK,
    FUSED_MAT_MUL,
    LOWERINGS,
    MAT_MUL_N_BITS,
    BringDown,
    BringUp,
    Lowering,
    lowers_mat_mul_n_bits,
)
from mobius.opsets import parse_opset
from mobius.report import LeftOut
from mobius.roles import Role, parse_role
from mobius.stage import Phase, Stage, Target
from mobius.stage_conditions import (
    always,
    avoids_loops,
    fuses_float_matmul,
    fuses_float_moe,
    fuses_gelu,
    fuses_gqa,
    fuses_quantized_moe,
    fuses_remaining_matmul,
    is_old,
    lowers_opset,
    packs_attention,
    packs_qkv,
    quantizes,
    runs_any,
    separates_rope,
)
from mobius.stage_makers import (
    from_primitives,
    make_bias_gelu,
    make_cleanup,
    make_fold,
    make_gqa_fusion,
    make_inline,
    make_quantize,
    make_quantized_moe,
    make_separate_rope,
    rule_group,
)
from mobius_eps import EpCapabilities, get_ep
from mobius_ir_rules.fusion.attention import attention_rules
from mobius_ir_rules.fusion.bias_gelu import OPERATORS as BIAS_GELU_OPERATORS
from mobius_ir_rules.fusion.fused_mat_mul import fused_matmul_rules
from mobius_ir_rules.fusion.gelu import gelu_rules
from mobius_ir_rules.fusion.layer_normalization import layer_normalization_rules
from mobius_ir_rules.fusion.moe import moe_rules
from mobius_ir_rules.fusion.pack_qkv import pack_qkv_rules
from mobius_ir_rules.fusion.packed_multi_head_attention import packed_multi_head_attention_rules
from mobius_ir_rules.fusion.recurrence import recurrence_rules
from mobius_ir_rules.fusion.rms_normalization import rms_normalization_rules
from mobius_ir_rules.fusion.rotary_embedding import rotary_embedding_rules
from mobius_ir_rules.fusion.skip_layer_norm import skip_layer_norm_rules
from mobius_ir_rules.fusion.skip_norm import skip_norm_rules
from mobius_ir_rules.lowering.unpack_qkv import unpack_qkv_rules

__all__ = ["GQA_FUSION", "STAGES", "Phase", "Stage", "Target", "left_out", "plan", "plan_for"]

GQA_FUSION = "GQAFusion"


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
        is_old,
        BringUp,
        "a model of an older opset than the target runs",
        ("max_opset",),
    ),
    Stage(Phase.CLEANUP, "Cleanup", always, make_cleanup),
    # First what exporters write out as primitives; what the target lacks of it is lowered again.
    *(
        Stage(Phase.FUSION, name, always, from_primitives(factory))
        for name, factory in (
            ("RMSNormFusion", rms_normalization_rules),
            ("LayerNormFusion", layer_normalization_rules),
            ("RotaryFusion", rotary_embedding_rules),
            ("AttentionFusion", attention_rules),
        )
    ),
    Stage(Phase.FUSION, GQA_FUSION, fuses_gqa, make_gqa_fusion, _DECODER, ("gqa_dtypes",)),
    # Before PackQKV: weights in the layout that they are stored in are joined without a transpose.
    Stage(
        Phase.FUSION,
        "FusedMatMul",
        fuses_float_matmul,
        rule_group(fused_matmul_rules),
        f"FusedMatMul in the dtype, and {_FLOATS}",
        ("supports_fused_matmul",),
    ),
    Stage(
        Phase.FUSION,
        "PackQKV",
        packs_qkv,
        rule_group(pack_qkv_rules),
        f"{_DECODER}, with packed queries, keys and values",
        ("gqa_dtypes", "qkv_pack_dtypes"),
    ),
    Stage(
        Phase.FUSION,
        "SkipNorm",
        runs_any("SkipSimplifiedLayerNormalization"),
        rule_group(skip_norm_rules),
        "SkipSimplifiedLayerNormalization in the dtype",
        ("supports_skip_layer_norm",),
    ),
    Stage(
        Phase.FUSION,
        "SkipLayerNorm",
        runs_any("SkipLayerNormalization"),
        rule_group(skip_layer_norm_rules),
        "SkipLayerNormalization in the dtype",
        ("supports_skip_layer_norm",),
    ),
    Stage(
        Phase.FUSION,
        "RecurrenceFusion",
        avoids_loops,
        rule_group(recurrence_rules),
        "a target whose loops are slow, and LinearAttention in the dtype",
        ("fast_loops",),
    ),
    Stage(
        Phase.FUSION,
        "MoEFusion",
        fuses_float_moe,
        rule_group(moe_rules),
        f"MoE in the dtype, and {_FLOATS}",
        ("supports_fused_moe",),
    ),
    Stage(
        Phase.FUSION,
        "GeluFusion",
        fuses_gelu,
        rule_group(gelu_rules),
        "Gelu, or Gelu and FastGelu of com.microsoft, in the dtype",
    ),
    Stage(
        Phase.FUSION,
        "PackedMultiHeadAttention",
        packs_attention,
        rule_group(packed_multi_head_attention_rules),
        "a model that is no decoder, and PackedMultiHeadAttention in the dtype",
        ("supports_packed_multi_head_attention",),
    ),
    Stage(
        Phase.FUSION,
        "BiasGelu",
        runs_any(*BIAS_GELU_OPERATORS),
        make_bias_gelu,
        f"{' or '.join(BIAS_GELU_OPERATORS)} of com.microsoft in the dtype",
    ),
    # Behind all that packs weights, so that what is packed is quantized as one.
    Stage(Phase.FUSION, "Quantize", quantizes, make_quantize, _INTEGERS),
    # FusedMatMul of a build with integers: no MatMulNBits scales, or reads what is transposed.
    Stage(
        Phase.FUSION,
        "FusedFloatMatMul",
        fuses_remaining_matmul,
        rule_group(fused_matmul_rules),
        f"{_INTEGERS}, and FusedMatMul in the dtype",
    ),
    # MoEFusion of a build with integers: whether experts are some is known now.
    Stage(
        Phase.FUSION,
        "QMoEFusion",
        fuses_quantized_moe,
        make_quantized_moe,
        f"{_INTEGERS}, and MoE or QMoE in the dtype",
    ),
    _lowering(Phase.INLINE, MAT_MUL_N_BITS, lowers_mat_mul_n_bits),
    _lowering(Phase.INLINE, BOOLEAN_MASK, BOOLEAN_MASK.needed),
    _lowering(Phase.INLINE, FUSED_MAT_MUL, FUSED_MAT_MUL.needed),
    Stage(Phase.INLINE, "InlinePass", always, make_inline),
    Stage(
        Phase.LOWERING,
        "SeparateRoPE",
        separates_rope,
        make_separate_rope,
        _ROTARY_INSIDE,
        ("gqa_dtypes", "supports_fused_rope"),
    ),
    Stage(
        Phase.LOWERING,
        "UnpackQKV",
        separates_rope,
        rule_group(unpack_qkv_rules),
        _ROTARY_INSIDE,
        ("gqa_dtypes", "supports_fused_rope"),
    ),
    *(_lowering(Phase.LOWERING, each, each.needed) for each in LOWERINGS),
    Stage(
        Phase.LOWERING,
        "LowerOpset",
        lowers_opset,
        BringDown,
        "a model of a newer opset than the target runs",
        ("max_opset",),
    ),
    Stage(Phase.FOLD, "Fold", always, make_fold),
)
"""Every stage of every target, in the order in which they run."""
