"""`known_families`: which model types the installed sources build, and what was measured of each.

A source that has a method `families` offers its own; see `Catalogue`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Protocol, runtime_checkable

from mobius.sources import ENTRY_POINT_GROUP
from mobius_eps import MobiusError

__all__ = [
    "Catalogue",
    "Cell",
    "Family",
    "UnknownFamilyError",
    "find_families",
    "known_families",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One build of a family that was run and compared with its reference, or refused.

    Attributes:
        layout: Which of the family's layouts was built; the model type for its usual one.
        ep: Name of the execution provider.
        dtype: Short name of the dtype.
        scenario: How the model was run: padding, pieces of the prompt.
        max_abs: Largest absolute difference of a logit from the reference's, in float32.
        max_rel: The same, relative to the largest logit of the reference.
        refused: Why nothing was built, where it was refused; the differences are `None` then.
    """

    layout: str
    ep: str
    dtype: str
    scenario: str
    max_abs: float | None = None
    max_rel: float | None = None
    refused: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A model type that a source builds.

    Attributes:
        model_type: As a checkpoint's configuration has it.
        source: Name of the source.
        features: What the measured layouts have beyond a plain decoder.
        cells: What was measured; empty for a family that no one has verified yet.
        versions: Versions of the libraries that it was measured with.
    """

    model_type: str
    source: str
    features: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()

    def verified(self) -> dict[str, tuple[str, ...]]:
        """Return the dtypes in which each EP was run with right results, by EP."""
        found: dict[str, dict[str, None]] = {}
        for cell in self.cells:
            if cell.refused is None:
                found.setdefault(cell.ep, {}).setdefault(cell.dtype)
        return {ep: tuple(dtypes) for ep, dtypes in found.items()}

    def largest(self, dtype: str) -> float | None:
        """Return the largest relative difference in a dtype; `None` if nothing was run in it."""
        measured = [cell.max_rel for cell in self.cells if cell.dtype == dtype]
        return max((each for each in measured if each is not None), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return {**dataclasses.asdict(self), "versions": dict(self.versions)}


@runtime_checkable
class Catalogue(Protocol):
    """A source that knows what it builds."""

    def families(self) -> tuple[Family, ...]:
        """Return every family that it builds, verified or not."""
        ...


def known_families() -> tuple[Family, ...]:
    """Return the families of every installed source that is a `Catalogue`, by model type."""
    found: list[Family] = []
    for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        source = entry_point.load()
        if isinstance(source, Catalogue):
            found.extend(source.families())
    return tuple(sorted(found, key=lambda family: (family.model_type, family.source)))


def find_families(model_type: str) -> tuple[Family, ...]:
    """Return the families of a model type, one for each source that builds it.

    Raises:
        UnknownFamilyError: if no installed source builds it.
    """
    known = known_families()
    found = tuple(family for family in known if family.model_type == model_type)
    if not found:
        raise UnknownFamilyError(model_type, [family.model_type for family in known])
    return found


class UnknownFamilyError(MobiusError, ValueError):
    """No installed source builds the model type."""

    def __init__(self, model_type: str, known: Sequence[str]) -> None:
        near = difflib.get_close_matches(model_type, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        there = (
            "`mobius models` lists those that are."
            if known
            else "No source is installed: pip install 'mobius-build[hf]'"
        )
        super().__init__(f"The model type {model_type!r} is not built.{hint} {there}")
