"""`QuantizationConfig`: which weights of a build become integers, and how.

Weights are rounded to nearest, block by block, as ONNX Runtime's own quantizer does; see
`mobius_ir_rules.block_quantization`.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from mobius_eps import MobiusError
from mobius_ir_rules.block_quantization import BITS, BLOCK_SIZES, BlockFormat
from mobius_ir_rules.passes.weight_uses import UseKind, WeightUse

__all__ = [
    "Floats",
    "Quantization",
    "QuantizationConfig",
    "QuantizationError",
    "parse_quantization",
]

_LISTED = 5
_MOST_ACCURATE, _FASTEST = 0, 4


@runtime_checkable
class Quantization(Protocol):
    """Decides which weights of a build become integers, and how."""

    @property
    def accuracy_level(self) -> int | None:
        """What kernels may round the other operand to; `None` as the provider says."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold, for the manifest."""
        ...

    def choose(self, use: WeightUse) -> BlockFormat | str | None:
        """Say how a weight is quantized for a use, or why it is not; `None` if nobody asked."""
        ...


class QuantizationError(MobiusError, ValueError):
    """Weights cannot be quantized as it was asked for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizationConfig:
    """Which weights become integers, and how.

    Attributes:
        bits: Width of an integer, 4 or 8.
        block_size: Numbers of a row that share a scale: 16, 32, 64, 128 or 256. 32 is what every
            execution provider has fast kernels for.
        symmetric: Zero is the middle integer. Otherwise each block has a zero point too: a little
            closer to the original, a little larger and slower.
        lm_head: Quantize the output head too.
        embeddings: Quantize tables that tokens are looked up in, too. A table that is the output
            head as well (`tie_word_embeddings`) is then stored once; without, the table stays as it
            is, and a quantized head has integers of its own.
        exclude: Regular expressions; a weight stays as it is where one of them is found in the name
            of a parameter that it is made of (`re.search`).
        accuracy_level: What `MatMulNBits` may round its other operand to, from 0, not at all, to 4,
            8-bit integers; `None` takes the execution provider's `default_int4_accuracy_level`.
            `QMoE` knows all and nothing: 4, and everything else.

    Raises:
        QuantizationError: naming the field that is wrong and what is needed.
    """

    bits: int = 4
    block_size: int = 32
    symmetric: bool = True
    lm_head: bool = True
    embeddings: bool = False
    exclude: tuple[str, ...] = ()
    accuracy_level: int | None = None

    def __post_init__(self) -> None:
        """Validate each field."""
        for name, allowed in (("bits", BITS), ("block_size", BLOCK_SIZES)):
            value = getattr(self, name)
            if isinstance(value, bool) or value not in allowed:
                raise self._error(name, f"one of {', '.join(map(str, allowed))}")
        for name in ("symmetric", "lm_head", "embeddings"):
            if not isinstance(getattr(self, name), bool):
                raise self._error(name, "True or False")
        level = self.accuracy_level
        if level is not None and (
            isinstance(level, bool)
            or not isinstance(level, int)
            or not _MOST_ACCURATE <= level <= _FASTEST
        ):
            raise self._error("accuracy_level", "an int from 0 (most accurate) to 4 (fastest)")
        exclude: object = self.exclude
        if isinstance(exclude, str) or not isinstance(exclude, Iterable):
            raise self._error("exclude", "a tuple of regular expressions")
        object.__setattr__(self, "exclude", tuple(exclude))
        for pattern in self.exclude:
            _compile(pattern)

    @property
    def form(self) -> BlockFormat:
        """How a weight is quantized."""
        return BlockFormat(self.bits, self.block_size, self.symmetric)

    def choose(self, use: WeightUse) -> BlockFormat | str | None:
        """Say how a weight is quantized for a use, or why it is not; `None` if nobody asked."""
        if use.kind is UseKind.TABLE and not self.embeddings:
            return None
        if use.kind is UseKind.ROUTER:
            return (
                "The weight chooses experts; a router stays as it is, because a rounded one sends "
                "tokens to other experts."
            )
        if use.kind is UseKind.HEAD and not self.lm_head:
            return "The weight is the output head, which was left out (lm_head=False)."
        for pattern in self.exclude:
            if any(re.search(pattern, name) for name in use.names):
                return f"The name of the weight has a match of '{pattern}', which was left out."
        return self.form

    def check_exclude(self, parameters: Iterable[str]) -> None:
        """Refuse a pattern that is found in no parameter: it is a mistake.

        Raises:
            QuantizationError: naming the pattern and some parameters.
        """
        names = list(parameters)
        for pattern in self.exclude:
            if not any(re.search(pattern, name) for name in names):
                near = difflib.get_close_matches(pattern, names, n=_LISTED, cutoff=0)
                raise QuantizationError(
                    f"The pattern '{pattern}' of exclude is found in none of the {len(names)} "
                    f"parameters. Some of them: {', '.join(near)}"
                )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return {**dataclasses.asdict(self), "exclude": list(self.exclude)}

    def _error(self, field: str, needed: str) -> QuantizationError:
        return QuantizationError(f"{field} is {getattr(self, field)!r}; needed: {needed}.")


@dataclasses.dataclass(frozen=True)
class Floats:
    """Makes nothing integers, and keeps nothing so that a checkpoint has quantized."""

    accuracy_level: int | None = None

    def choose(self, use: WeightUse) -> None:
        """Leave every weight as it is."""
        del use

    def to_dict(self) -> dict[str, Any]:
        """Return that nothing is done."""
        return {}


QUANTIZATIONS: Mapping[str, QuantizationConfig | Floats] = MappingProxyType(
    {
        "int4": QuantizationConfig(),
        "int8": QuantizationConfig(bits=8),
        "float": Floats(),
    }
)
"""What the names mean that stand for a whole configuration."""


def parse_quantization(quantize: str | Quantization | None) -> Quantization | None:
    """Return what a user means.

    Raises:
        QuantizationError: if there is no such way to quantize.
    """
    if quantize is None or isinstance(quantize, Quantization):
        return quantize
    name = quantize.strip().lower() if isinstance(quantize, str) else ""
    if name in QUANTIZATIONS:
        return QUANTIZATIONS[name]
    near = difflib.get_close_matches(name, QUANTIZATIONS, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise QuantizationError(
        f"quantize is {quantize!r}; needed: one of {', '.join(map(repr, QUANTIZATIONS))}, or a "
        f"mobius.QuantizationConfig.{hint}"
    )


def _compile(pattern: object) -> None:
    if not isinstance(pattern, str):
        raise QuantizationError(f"exclude holds {pattern!r}; needed: a regular expression.")
    try:
        re.compile(pattern)
    except re.error as error:
        raise QuantizationError(
            f"exclude holds {pattern!r}, which is no regular expression: {error}."
        ) from error
