"""`EpCapabilities`: what one execution provider can run, as a validated, immutable value.

No code anywhere tests an execution provider's name. Whatever a build decides, it decides from the
fields here, so that a new provider is one new value.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from mobius_eps.errors import InvalidCapabilitiesError
from mobius_eps.frozen_mapping import FrozenMapping
from mobius_eps.lack import Lack
from mobius_eps.runtime_names import NAMELESS, RuntimeNames

STANDARD_DOMAIN = ""
CONTRIB_DOMAIN = "com.microsoft"
OLDEST_OPSET = 17
"""Oldest opset that models are brought down to: the first one with LayerNormalization."""
NEWEST_OPSET = 24
"""The opset that models are written in."""

_NAME = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")
_DTYPE_FIELDS = ("gqa_dtypes", "qkv_pack_dtypes", "dtypes")
# Each of these says "the target runs an operator of com.microsoft".
_CONTRIB_FLAGS = (
    "supports_skip_layer_norm",
    "supports_fused_matmul",
    "supports_fused_moe",
    "supports_packed_multi_head_attention",
)
_FLAGS = (
    "supports_fused_rope",
    *_CONTRIB_FLAGS,
    "enable_graph_capture",
    "keeps_function_bodies",
    "fast_loops",
)


@dataclasses.dataclass(frozen=True)
class EpCapabilities:
    """What one execution provider can run.

    Values are immutable all the way down, hashable and picklable; `dataclasses.replace` makes a
    changed copy and validates it again. Sets may be given as any iterable, `provider_options` as
    any mapping.

    Attributes:
        name: Lower-case slug that users pass as `execution_provider`.
        gqa_dtypes: Dtypes in which the target runs `com.microsoft::GroupQueryAttention`; GQA
            fusion fires for these.
        qkv_pack_dtypes: Dtypes in which Q, K and V are projected by one packed MatMul; a subset
            of `gqa_dtypes`, because the packed value feeds GroupQueryAttention.
        supports_fused_rope: GroupQueryAttention may apply rotary embedding itself and may take a
            packed QKV. False runs SeparateRoPE and UnpackQKV.
        supports_skip_layer_norm: The target runs SkipLayerNormalization and
            SkipSimplifiedLayerNormalization. False expands them.
        supports_fused_matmul: The target runs FusedMatMul. False expands it.
        supports_fused_moe: The target runs the fused mixture-of-experts operators. False
            decomposes them.
        supports_packed_multi_head_attention: The target runs PackedMultiHeadAttention.
        default_int4_accuracy_level: `accuracy_level` of MatMulNBits where the user gives none;
            0 is the most accurate, 4 the fastest.
        provider_options: Options that a package's runtime configuration starts from.
        enable_graph_capture: Whether a package asks for GPU graph capture.
        dtypes: Float dtypes in which the target runs a whole model.
        allowed_domains: Operator domains that a finished graph may use; `""` is standard ONNX.
        max_opset: Newest version of the standard operators that the target has kernels for; a
            newer model is brought down to it. ONNX Runtime matches a kernel that is registered
            from a version on, without an end, with exactly that version of the operator: one
            kernel table that stops at Cast-21 has no kernel for the Cast of opset 23.
        lacks: Operators that the target has no kernel for, or gets wrong. A flag above that is
            False says the same of its operators. Given as any iterable; order does not matter.
        keeps_function_bodies: Custom operators that stay carry a function body, for a runtime that
            does not know them. False where only ONNX Runtime will load the graph: it ignores the
            body of an operator that it knows.
        runtime_names: What ONNX Runtime and onnxruntime-genai call the target.
        max_buffer_bytes: Largest tensor that every device of the target holds in one buffer; a
            build warns of larger ones. `None` for no limit.
        max_tensor_elements: Largest number of elements that the target's kernels count right; a
            build warns of tensors with more. `None` for no limit.

        fast_loops: A Loop over tokens costs what its nodes cost. False where each iteration is
            launched from the CPU, or runs there.

    Raises:
        InvalidCapabilitiesError: If a value is wrong, alone or beside another field. The message
            names the field, the value and what is needed.
    """

    name: str
    gqa_dtypes: frozenset[ir.DataType] = frozenset()
    qkv_pack_dtypes: frozenset[ir.DataType] = frozenset()
    supports_fused_rope: bool = True
    supports_skip_layer_norm: bool = True
    supports_fused_matmul: bool = True
    supports_fused_moe: bool = True
    supports_packed_multi_head_attention: bool = False
    default_int4_accuracy_level: int = 0
    provider_options: Mapping[str, str] = FrozenMapping()
    enable_graph_capture: bool = False
    dtypes: frozenset[ir.DataType] = frozenset(
        {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
    )
    allowed_domains: frozenset[str] = frozenset({STANDARD_DOMAIN, CONTRIB_DOMAIN})
    max_opset: int = NEWEST_OPSET
    lacks: tuple[Lack, ...] = ()
    keeps_function_bodies: bool = True
    fast_loops: bool = True
    runtime_names: RuntimeNames = NAMELESS
    max_buffer_bytes: int | None = None
    max_tensor_elements: int | None = None

    def __post_init__(self) -> None:
        """Validate each field, freeze the containers, then validate fields against each other."""
        self._check_name()
        for field in _DTYPE_FIELDS:
            object.__setattr__(self, field, self._frozen_dtypes(field))
        object.__setattr__(self, "allowed_domains", self._frozen_domains())
        object.__setattr__(self, "provider_options", self._frozen_options())
        object.__setattr__(self, "lacks", self._frozen_lacks())
        self._check_flags()
        self._check_accuracy_level()
        self._check_max_opset()
        self._check_runtime_names()
        self._check_tensor_limits()
        self._check_dtype_relations()
        self._check_domain_relations()

    def _error(self, problem: str) -> InvalidCapabilitiesError:
        return InvalidCapabilitiesError(f"EpCapabilities {self.name!r}: {problem}")

    def _check_name(self) -> None:
        if not isinstance(self.name, str) or _NAME.fullmatch(self.name) is None:
            raise self._error(
                f"name={self.name!r} must be a non-empty lower-case slug, such as 'my-ep': "
                "letters a-z and digits, joined by single '-' or '_'"
            )

    def _members(self, field: str, of: str) -> tuple[object, ...]:
        value = getattr(self, field)
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise self._error(f"{field}={value!r} must be a set of {of}")
        return tuple(value)

    def _frozen_dtypes(self, field: str) -> frozenset[ir.DataType]:
        dtypes = set()
        for member in self._members(field, "onnx_ir.DataType"):
            # A bare 1 equals DataType.FLOAT, yet it is not one and prints badly.
            if not isinstance(member, ir.DataType):
                raise self._error(
                    f"{field} holds {member!r}; every member must be an onnx_ir.DataType, "
                    "such as onnx_ir.DataType.FLOAT16"
                )
            if not member.is_floating_point():
                raise self._error(f"{field} holds {member.name}; a floating-point dtype is needed")
            dtypes.add(member)
        return frozenset(dtypes)

    def _frozen_domains(self) -> frozenset[str]:
        domains = set()
        for member in self._members("allowed_domains", "operator domains"):
            if not isinstance(member, str):
                raise self._error(f"allowed_domains holds {member!r}; every member must be a str")
            if member == "ai.onnx":
                raise self._error(
                    "allowed_domains holds 'ai.onnx'; write the standard domain as ''"
                )
            domains.add(member)
        if STANDARD_DOMAIN not in domains:
            raise self._error(
                f"allowed_domains={_names(domains)} must contain '', the standard ONNX domain"
            )
        return frozenset(domains)

    def _frozen_options(self) -> FrozenMapping:
        options = self.provider_options
        if not isinstance(options, Mapping):
            raise self._error(f"provider_options={options!r} must be a mapping of str to str")
        for key, value in options.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise self._error(
                    f"provider_options holds {key!r}: {value!r}; keys and values must be str, "
                    "such as {'enable_cuda_graph': '0'}"
                )
        return FrozenMapping(options)

    def _frozen_lacks(self) -> tuple[Lack, ...]:
        lacks = set()
        for member in self._members("lacks", "mobius_eps.Lack"):
            if not isinstance(member, Lack):
                raise self._error(
                    f"lacks holds {member!r}; every member must be a mobius_eps.Lack, "
                    "such as Lack('Attention')"
                )
            lacks.add(member)
        # A fixed order: equal sets of lacks make equal values.
        return tuple(sorted(lacks, key=_lack_order))

    def _check_flags(self) -> None:
        for field in _FLAGS:
            value = getattr(self, field)
            if not isinstance(value, bool):
                raise self._error(f"{field}={value!r} must be True or False")

    def _check_accuracy_level(self) -> None:
        level = self.default_int4_accuracy_level
        if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level <= 4:
            raise self._error(
                f"default_int4_accuracy_level={level!r} must be an int from 0 (most accurate) "
                "to 4 (fastest)"
            )

    def _check_max_opset(self) -> None:
        opset = self.max_opset
        is_int = isinstance(opset, int) and not isinstance(opset, bool)
        if not is_int or not OLDEST_OPSET <= opset <= NEWEST_OPSET:
            raise self._error(
                f"max_opset={opset!r} must be an int from {OLDEST_OPSET}, the oldest opset that "
                f"models are brought down to, to {NEWEST_OPSET}, the one that they are written in; "
                f"a target that runs newer ones has {NEWEST_OPSET}"
            )

    def _check_runtime_names(self) -> None:
        if not isinstance(self.runtime_names, RuntimeNames):
            raise self._error(
                f"runtime_names={self.runtime_names!r} must be a mobius_eps.RuntimeNames, such as "
                "RuntimeNames(ort='CUDAExecutionProvider', genai='cuda')"
            )

    def _check_tensor_limits(self) -> None:
        for field in ("max_buffer_bytes", "max_tensor_elements"):
            limit = getattr(self, field)
            is_int = isinstance(limit, int) and not isinstance(limit, bool)
            if limit is not None and (not is_int or limit < 1):
                raise self._error(f"{field}={limit!r} must be a positive int, or None for no limit")

    def _check_dtype_relations(self) -> None:
        if not self.dtypes:
            raise self._error("dtypes is empty; at least one float dtype is needed")
        for field, within in (("gqa_dtypes", "dtypes"), ("qkv_pack_dtypes", "gqa_dtypes")):
            inner, outer = getattr(self, field), getattr(self, within)
            if not inner <= outer:
                raise self._error(
                    f"{field}={_dtype_names(inner)} must be a subset of "
                    f"{within}={_dtype_names(outer)}; remove {_dtype_names(inner - outer)} from "
                    f"{field} or add it to {within}"
                )

    def _check_domain_relations(self) -> None:
        if CONTRIB_DOMAIN in self.allowed_domains:
            return
        needed = [f"{field}=False" for field in _CONTRIB_FLAGS if getattr(self, field)]
        if self.gqa_dtypes:
            needed.insert(0, "gqa_dtypes=frozenset()")
        if needed:
            raise self._error(
                f"allowed_domains={_names(self.allowed_domains)} has no {CONTRIB_DOMAIN!r}, whose "
                f"operators these fields ask for; set {', '.join(needed)}, or add "
                f"{CONTRIB_DOMAIN!r} to allowed_domains"
            )


def _names(members: Iterable[str]) -> str:
    return "{" + ", ".join(repr(member) for member in sorted(members)) + "}"


def _dtype_names(dtypes: Iterable[ir.DataType]) -> str:
    return "{" + ", ".join(dtype.name for dtype in sorted(dtypes)) + "}"


def _lack_order(lack: Lack) -> tuple[str, str, str, list[ir.DataType], list[ir.DataType]]:
    dtypes = sorted(lack.dtypes), sorted(lack.input_dtypes)
    return (lack.domain, lack.op_type, lack.attribute or "", *dtypes)
