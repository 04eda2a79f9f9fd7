"""`runs(target, domain, op_type)`: whether a target runs an operator; tables, no names of EPs.

The one place where all that says so comes together: the domains that a target allows, its flags,
its lacks, and the opset that the model is brought down to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

import onnx_ir as ir

from mobius.stage import Target
from mobius_eps import EpCapabilities, Lack

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
"""(domain, operator) -> the flag that says whether a target has a kernel."""

SINCE_VERSION: Mapping[tuple[str, str], int] = MappingProxyType(
    {
        ("", "Attention"): 23,
        ("", "Gelu"): 20,
        ("", "RMSNormalization"): 23,
        ("", "RotaryEmbedding"): 23,
        ("", "Swish"): 24,
    }
)
"""The opset in which a standard operator appeared, of those that a stage takes apart."""

# Optional inputs and outputs by position, of the operators whose lacks may name them.
_OPTIONAL_VALUES: Mapping[tuple[str, str], tuple[Mapping[int, str], Mapping[int, str]]] = (
    MappingProxyType(
        {
            ("", "Attention"): (
                {3: "attn_mask", 4: "past_key", 5: "past_value", 6: "nonpad_kv_seqlen"},
                {1: "present_key", 2: "present_value", 3: "qk_matmul_output"},
            ),
            (_MICROSOFT, "GroupQueryAttention"): (
                {
                    3: "past_key",
                    4: "past_value",
                    7: "cos_cache",
                    8: "sin_cache",
                    9: "position_ids",
                    10: "attention_bias",
                    11: "head_sink",
                },
                {1: "present_key", 2: "present_value", 3: "output_qk"},
            ),
        }
    )
)


VALUES: Mapping[tuple[str, str], Mapping[str, int]] = MappingProxyType(
    {(_MICROSOFT, "QMoE"): {"accuracy_level": 0, "block_size": 0, "expert_weight_bits": 4}}
)
"""(domain, operator) -> integer attributes of which lacks may name a value, with their defaults."""


def runs(target: Target, domain: str, op_type: str, *attributes: str) -> bool:
    """Return whether the target runs the operator in its dtype, as far as capabilities say.

    That is: the domain is allowed, the operator exists in the opset of the result, its flag is not
    off, and it is not in `lacks`.

    Args:
        target: Capabilities, dtype and opset.
        domain: Domain of the operator.
        op_type: The operator.
        attributes: Attributes, optional inputs and outputs that the use sets, by their names.
    """
    return _runs(target, domain, op_type, attributes)


def runs_node(target: Target, node: ir.Node, *, without: str = "") -> bool:
    """Return whether the target runs an operator as the node uses it, in the node's own dtype.

    Args:
        target: Capabilities, dtype and opset.
        node: The node.
        without: An attribute, optional input or output, as if the node did not set it.
    """
    target = dataclasses.replace(target, dtype=dtype_of(node) or target.dtype)
    uses = {name: dtype for name, dtype in uses_of(node).items() if name != without}
    return _runs(target, node.domain, node.op_type, uses)


def runs_every_use(target: Target, domain: str, op_type: str) -> bool:
    """Return whether the target runs the operator in its dtype, whatever a node sets."""
    lacks = target.capabilities.lacks
    return runs(target, domain, op_type) and not any(
        lack.covers(target.dtype, lack.use)
        for lack in lacks
        if (lack.domain, lack.op_type) == (domain, op_type)
    )


def _runs(target: Target, domain: str, op_type: str, uses: Collection[str]) -> bool:
    capabilities = target.capabilities
    has_kernel = OP_CAPABILITY.get((domain, op_type))
    return (
        domain in capabilities.allowed_domains
        and target.result_opset >= SINCE_VERSION.get((domain, op_type), 0)
        and (has_kernel is None or has_kernel(capabilities))
        and not lacks_of(target, domain, op_type, uses)
    )


def lacks_of(
    target: Target, domain: str, op_type: str, uses: Collection[str] = ()
) -> tuple[Lack, ...]:
    """Return the lacks that speak against a use of the operator in the target's dtype.

    Args:
        target: Capabilities and dtype.
        domain: Domain of the operator.
        op_type: The operator.
        uses: What the use sets, as `Lack.covers` takes it.
    """
    return tuple(
        lack
        for lack in target.capabilities.lacks
        if (lack.domain, lack.op_type) == (domain, op_type) and lack.covers(target.dtype, uses)
    )


def wrong_uses(target: Target, domain: str, op_type: str) -> dict[str, str]:
    """Return the uses of an operator that the target lacks, each with the reason.

    Uses are spelled as `Lack.attribute` spells them.
    """
    return {
        lack.attribute: lack.reason
        for lack in target.capabilities.lacks
        if (lack.domain, lack.op_type) == (domain, op_type)
        and lack.attribute is not None
        and lack.covers(target.dtype, lack.use)
    }


def wrong_attributes(target: Target, domain: str, op_type: str) -> frozenset[str]:
    """Return what the target gets wrong of an operator, by the names that `Lack` has for it.

    An input that is wrong in some element types only is not among them.
    """
    return frozenset(
        lack.attribute
        for lack in target.capabilities.lacks
        if (lack.domain, lack.op_type) == (domain, op_type)
        and lack.attribute is not None
        and lack.covers(target.dtype, set(lack.use))
    )


def uses_of(node: ir.Node) -> dict[str, ir.DataType | None]:
    """Return what a node sets, by the names that `Lack.attribute` has for it.

    These are the attributes that are not 0 or empty, which is how operators spell "off", the
    values of integer ones that lacks may name, and the optional inputs and outputs that the node
    has; of the latter two, with their element types.
    """
    inputs, outputs = _OPTIONAL_VALUES.get((node.domain, node.op_type), ({}, {}))
    uses: dict[str, ir.DataType | None] = {
        name: None for name, attribute in node.attributes.items() if _is_set(attribute)
    }
    for name, default in VALUES.get((node.domain, node.op_type), {}).items():
        attribute = node.attributes.get(name)
        if attribute is None or not attribute.is_ref():
            uses[f"{name}={default if attribute is None else attribute.as_int()}"] = None
    for index, value in enumerate(node.inputs):
        if index in inputs and value is not None:
            uses[inputs[index]] = value.dtype
    for index, value in enumerate(node.outputs):
        if index in outputs and _is_used(value):
            uses[outputs[index]] = value.dtype
    return uses


def dtype_of(node: ir.Node) -> ir.DataType | None:
    """Return the float dtype that a node computes in, that of its first float value."""
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.dtype is not None and value.dtype.is_floating_point():
            return value.dtype
    return None


def _is_set(attribute: ir.Attr) -> bool:
    return attribute.is_ref() or attribute.value not in (0, "")


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
