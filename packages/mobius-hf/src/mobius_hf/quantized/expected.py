"""`expected_quantization`: which weights `quantization_config` says are integers, without weights.

For graphs that are built without weights. With weights, the tensors themselves say it.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from mobius_hf.quantized.methods import method_name
from mobius_hf.quantized.packing import block_size_for
from mobius_ir_rules.block_quantization import BITS, BlockFormat
from mobius_ir_rules.passes.weight_uses import UseKind, WeightUse

__all__ = ["ExpectedQuantization", "expected_quantization"]


@dataclasses.dataclass(frozen=True)
class ExpectedQuantization:
    """Quantizes products and experts of layers as a configuration says.

    Attributes:
        bits: Width of an integer.
        group: Columns that share a scale; `None` for whole rows.
        symmetric: There are no zero points.
        left_out: Names of modules, or patterns of them, that stay floats.
        accuracy_level: See `mobius.QuantizationConfig`.
    """

    bits: int
    group: int | None
    symmetric: bool
    left_out: tuple[str, ...] = ()
    accuracy_level: int | None = None

    def choose(self, use: WeightUse) -> BlockFormat | None:
        """Return the format of a weight; `None` where it stays floats."""
        if use.kind not in (UseKind.PRODUCT, UseKind.EXPERTS):
            return None
        if any(_is_left_out(name, self.left_out) for name in use.names):
            return None
        size = block_size_for(self.group or use.columns, use.columns)
        return None if size is None else BlockFormat(self.bits, size, self.symmetric)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return {"expected": {**dataclasses.asdict(self), "left_out": list(self.left_out)}}


def expected_quantization(raw: Mapping[str, Any]) -> ExpectedQuantization | None:
    """Return what a `config.json` says; `None` where its weights become floats, or are floats.

    Args:
        raw: Content of `config.json`.
    """
    settings = raw.get("quantization_config")
    if not isinstance(settings, Mapping):
        return None
    read = _READ.get(method_name(settings))
    return None if read is None else read(settings)


def _gptq(settings: Mapping[str, Any]) -> ExpectedQuantization | None:
    bits = settings.get("bits")
    if bits not in BITS or settings.get("desc_act"):
        return None
    return ExpectedQuantization(
        bits, _group(settings.get("group_size")), bool(settings.get("sym", True))
    )


def _awq(settings: Mapping[str, Any]) -> ExpectedQuantization | None:
    group = settings.get("group_size", settings.get("q_group_size"))
    left_out = settings.get("modules_to_not_convert") or ()
    return ExpectedQuantization(4, _group(group), symmetric=False, left_out=tuple(left_out))


def _compressed(settings: Mapping[str, Any]) -> ExpectedQuantization | None:
    groups = [
        group["weights"]
        for group in (settings.get("config_groups") or {}).values()
        if isinstance(group, Mapping) and isinstance(group.get("weights"), Mapping)
    ]
    if len(groups) != 1:
        return None
    (weights,) = groups
    bits = weights.get("num_bits")
    mixed = weights.get("actorder") == "group"
    if weights.get("type") != "int" or bits not in BITS or mixed:
        return None
    if settings.get("format") != "pack-quantized":
        bits = 8  # one integer a byte
    group = _group(weights.get("group_size")) if weights.get("strategy") == "group" else None
    return ExpectedQuantization(
        bits, group, bool(weights.get("symmetric", True)), tuple(settings.get("ignore") or ())
    )


_READ: Mapping[str, Callable[[Mapping[str, Any]], ExpectedQuantization | None]] = MappingProxyType(
    {
        "gptq": _gptq,
        "awq": _awq,
        "compressed-tensors": _compressed,
        "auto-round auto_round:auto_gptq": _gptq,
        "auto-round auto_round:auto_awq": _awq,
    }
)


def _group(size: object) -> int | None:
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None


def _is_left_out(parameter: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a module's name, a part of it, or a pattern of it is among those left out."""
    module = parameter.removesuffix(".weight")
    for pattern in patterns:
        if pattern.startswith("re:"):
            if re.match(pattern[3:], module):
                return True
        elif fnmatch.fnmatchcase(module, pattern) or pattern in module:
            return True
    return False
