"""`runs(capabilities, domain, op_type)`: whether a target runs an operator; a table, no names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from mobius_eps import EpCapabilities

_MICROSOFT = "com.microsoft"

OP_CAPABILITY: Mapping[tuple[str, str], Callable[[EpCapabilities], bool]] = MappingProxyType(
    {
        (_MICROSOFT, "FusedMatMul"): lambda c: c.supports_fused_matmul,
        (_MICROSOFT, "MoE"): lambda c: c.supports_fused_moe,
        (_MICROSOFT, "QMoE"): lambda c: c.supports_fused_moe,
        (_MICROSOFT, "PackedMultiHeadAttention"): (
            lambda c: c.supports_packed_multi_head_attention
        ),
        (_MICROSOFT, "SkipLayerNormalization"): lambda c: c.supports_skip_layer_norm,
        (_MICROSOFT, "SkipSimplifiedLayerNormalization"): lambda c: c.supports_skip_layer_norm,
    }
)
"""(domain, operator) -> whether a target has a kernel; the domain must be allowed besides."""


def runs(capabilities: EpCapabilities, domain: str, op_type: str) -> bool:
    """Return whether the target runs the operator, as far as its capabilities say."""
    has_kernel = OP_CAPABILITY.get((domain, op_type))
    return domain in capabilities.allowed_domains and (
        has_kernel is None or has_kernel(capabilities)
    )
