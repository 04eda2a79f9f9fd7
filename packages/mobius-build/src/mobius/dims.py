"""Sizes of the dimensions of two models' inputs: one number for each, the same in both models.

Dimensions are unknowns. Those with one name in one model are equal, those of an input that both
models have are equal, and fixed sizes and the user's are their values. What is left takes the size
of its part in a language model (batch, sequence, cache), told by the input that it is in or by its
name, and a small number otherwise.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from mobius.errors import VerifyError
from mobius.ort import Port

__all__ = ["Sizes", "bind", "fitted", "part_of"]

Shape = tuple[int, ...]

_OTHER = 4


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What the unknown dimensions are, unless the models fix them.

    Attributes:
        batch: Number of rows.
        sequence: Number of new tokens in a row.
        past: Number of tokens in the cache.
        dims: The user's own sizes, by the names of dimensions.
    """

    batch: int
    sequence: int
    past: int = 0
    dims: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def of(self, part: str) -> int:
        """Return the size of a part: `batch`, `sequence`, `past`, `total` or `encoder`."""
        return {
            "batch": self.batch,
            "sequence": self.sequence,
            "past": self.past,
            "total": self.past + self.sequence,
            "encoder": self.sequence + 1,
        }[part]


# Pattern of the input's name, and the part that each of its dimensions plays.
_PARTS: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"(decoder_)?input_ids|token_type_ids", ("batch", "sequence")),
    (r"(decoder_)?inputs_embeds", ("batch", "sequence", None)),
    (r"position_ids", ("batch", "sequence")),
    (r"position_ids", (None, "batch", "sequence")),
    (r"cache_position", ("sequence",)),
    (r"(decoder_)?attention_mask", ("batch", "total")),
    (r"(decoder_)?attention_mask", ("batch", None, "sequence", "total")),
    (r"encoder_attention_mask", ("batch", "encoder")),
    (r"encoder_hidden_states", ("batch", "encoder", None)),
    # Keys and values; a state of fixed size has no axis of tokens.
    (r"past(?!.*_state$).*", ("batch", None, "past", None)),
)

# Names of dimensions, compared without case and punctuation.
_NAMES = {
    "batch": "batch",
    "batchsize": "batch",
    "seq": "sequence",
    "seqlen": "sequence",
    "seqlength": "sequence",
    "sequence": "sequence",
    "sequencelength": "sequence",
    "past": "past",
    "pastseqlen": "past",
    "pastsequencelength": "past",
    "totalseqlen": "total",
    "totalsequencelength": "total",
    "pastsequencelengthsequencelength": "total",
    "encodersequencelength": "encoder",
}


def part_of(port: Port, axis: int) -> str | None:
    """Return the part that a dimension of an input or output plays, if it is known."""
    for pattern, parts in _PARTS:
        if len(parts) == len(port.shape) and re.fullmatch(pattern, port.name):
            return parts[axis]
    name = port.shape[axis]
    return _NAMES.get(re.sub(r"[^a-z]", "", name.lower())) if isinstance(name, str) else None


def bind(models: Sequence[Sequence[Port]], sizes: Sizes) -> dict[str, Shape]:
    """Return the shape of each input of the models.

    Args:
        models: The inputs of each model.
        sizes: Sizes of what the models leave open.

    Raises:
        VerifyError: if two fixed sizes contradict each other, or a dimension in `sizes.dims` is
            in none of the models.
    """
    _check_names(models, sizes)
    unknowns = _Unknowns()
    for index, ports in enumerate(models):
        for port in ports:
            for axis, dim in enumerate(port.shape):
                place = f"dimension {axis} of {port.name!r}"
                here = unknowns.find(("input", port.name, axis))
                if isinstance(dim, int):
                    unknowns.fix(here, dim, place)
                elif dim is not None:
                    unknowns.join(here, unknowns.find((index, dim, 0)), place)
                    if dim in sizes.dims:
                        unknowns.fix(unknowns.find((index, dim, 0)), sizes.dims[dim], place)
    for ports in models:
        for port in ports:
            for axis in range(len(port.shape)):
                part = part_of(port, axis)
                if part is not None:
                    unknowns.suggest(unknowns.find(("input", port.name, axis)), sizes.of(part))
    shapes: dict[str, Shape] = {}
    for ports in models:
        for port in ports:
            shape = tuple(
                unknowns.size(("input", port.name, axis)) for axis in range(len(port.shape))
            )
            if len(shapes.setdefault(port.name, shape)) != len(shape):
                raise VerifyError(
                    f"Input {port.name!r} has {len(shapes[port.name])} dimensions in one model "
                    f"and {len(shape)} in the other, so no value fits both."
                )
    return shapes


def fitted(models: Sequence[Sequence[Port]], sizes: Sizes) -> Sizes:
    """Return `sizes` with the batch, sequence and past that the models fix.

    Raises:
        VerifyError: as `bind`.
    """
    shapes = bind(models, sizes)
    found: dict[str, int] = {}
    for port in (port for ports in models for port in ports):
        for axis, size in enumerate(shapes[port.name]):
            found.setdefault(part_of(port, axis) or "", size)
    return dataclasses.replace(
        sizes,
        batch=found.get("batch", sizes.batch),
        sequence=found.get("sequence", sizes.sequence),
        past=found.get("past", sizes.past),
    )


def _check_names(models: Sequence[Sequence[Port]], sizes: Sizes) -> None:
    known = {
        dim for ports in models for port in ports for dim in port.shape if isinstance(dim, str)
    }
    unknown = sorted(set(sizes.dims) - known)
    if unknown:
        raise VerifyError(
            f"No input has a dimension called {', '.join(map(repr, unknown))}. There are: "
            f"{', '.join(sorted(known)) or 'none that is not fixed'}."
        )


_Key = tuple[str | int, str, int]


class _Unknowns:
    """A union-find of dimensions with the size of each class."""

    def __init__(self) -> None:
        self._parents: dict[_Key, _Key] = {}
        self._fixed: dict[_Key, tuple[int, str]] = {}
        self._suggested: dict[_Key, int] = {}

    def find(self, key: _Key) -> _Key:
        while (parent := self._parents.setdefault(key, key)) != key:
            key = parent
        return key

    def join(self, a: _Key, b: _Key, place: str) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self._parents[b] = a
            if b in self._fixed:
                size, _ = self._fixed[b]
                self.fix(a, size, place)

    def fix(self, key: _Key, size: int, place: str) -> None:
        key = self.find(key)
        known, where = self._fixed.setdefault(key, (size, place))
        if known != size:
            raise VerifyError(
                f"No size fits both models: {place} is {size}, and {where}, which must be the "
                f"same, is {known}."
            )

    def suggest(self, key: _Key, size: int) -> None:
        self._suggested.setdefault(self.find(key), size)

    def size(self, key: _Key) -> int:
        key = self.find(key)
        if key in self._fixed:
            return self._fixed[key][0]
        return self._suggested.get(key, _OTHER)
