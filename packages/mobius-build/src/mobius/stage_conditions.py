"""Whether a stage of the pipeline runs for a target, one question each."""

from __future__ import annotations

from collections.abc import Callable

from mobius.op_support import SINCE_VERSION, runs
from mobius.roles import Role
from mobius.stage import Target

_MICROSOFT = "com.microsoft"


def always(target: Target) -> bool:
    """Run for every target."""
    del target
    return True


def fuses_gqa(target: Target) -> bool:
    """Return whether a decoder gets GroupQueryAttention."""
    return (
        target.role is Role.DECODER
        and target.dtype in target.capabilities.gqa_dtypes
        and runs(target, _MICROSOFT, "GroupQueryAttention")
    )


def packs_qkv(target: Target) -> bool:
    """Return whether queries, keys and values of GroupQueryAttention come packed."""
    return fuses_gqa(target) and target.dtype in target.capabilities.qkv_pack_dtypes


def separates_rope(target: Target) -> bool:
    """Return whether GroupQueryAttention has no rotary embedding inside."""
    return fuses_gqa(target) and not target.capabilities.supports_fused_rope


def runs_any(*op_types: str) -> Callable[[Target], bool]:
    """Return whether a target runs one of the operators of com.microsoft that a stage makes."""
    return lambda target: any(runs(target, _MICROSOFT, op_type) for op_type in op_types)


def fuses_gelu(target: Target) -> bool:
    """Return whether the target has a GELU; LowerGelu gives it the one that it has."""
    return target.working_opset >= SINCE_VERSION["", "Gelu"] and (
        runs(target, "", "Gelu")
        or (runs(target, _MICROSOFT, "Gelu") and runs(target, _MICROSOFT, "FastGelu"))
    )


def avoids_loops(target: Target) -> bool:
    """Return whether LinearAttention takes the place of a loop."""
    return not target.capabilities.fast_loops and runs(target, _MICROSOFT, "LinearAttention")


def is_old(target: Target) -> bool:
    """Return whether the model is of an older opset than the target runs."""
    return target.model_opset < target.max_opset


def lowers_opset(target: Target) -> bool:
    """Return whether the model ends in an older opset than it is optimised in."""
    return target.result_opset < target.working_opset


def packs_attention(target: Target) -> bool:
    """Return whether what is no decoder gets PackedMultiHeadAttention."""
    return target.role is not Role.DECODER and runs(target, _MICROSOFT, "PackedMultiHeadAttention")


def quantizes(target: Target) -> bool:
    """Return whether weights become integers."""
    return target.quantization is not None


def fuses_float_matmul(target: Target) -> bool:
    """Return whether a build without integers gets FusedMatMul."""
    return not quantizes(target) and runs(target, _MICROSOFT, "FusedMatMul")


def fuses_remaining_matmul(target: Target) -> bool:
    """Return whether the products that stayed floats get FusedMatMul."""
    return quantizes(target) and runs(target, _MICROSOFT, "FusedMatMul")


def fuses_float_moe(target: Target) -> bool:
    """Return whether a build without integers gets MoE."""
    return not quantizes(target) and runs(target, _MICROSOFT, "MoE")


def fuses_quantized_moe(target: Target) -> bool:
    """Return whether a build with integers gets QMoE, or MoE where experts stayed floats."""
    return quantizes(target) and any(runs(target, _MICROSOFT, name) for name in ("MoE", "QMoE"))
