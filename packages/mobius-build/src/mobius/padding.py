"""`PaddingSide`: where rows are padded, which decides how attention counts tokens."""

from __future__ import annotations

import enum

from mobius_eps import MobiusError


class PaddingSide(enum.StrEnum):
    """The side of a prompt on which its row is padded; equal to its plain name."""

    LEFT = "left"
    RIGHT = "right"


class UnknownPaddingSideError(MobiusError, ValueError):
    """Rows are padded on no such side."""

    def __init__(self, side: object) -> None:
        super().__init__(f"Unknown padding_side {side!r}. Supported: {[*map(str, PaddingSide)]}")


def parse_padding_side(side: str) -> PaddingSide:
    """Return the side with this name.

    Raises:
        UnknownPaddingSideError: if there is none.
    """
    try:
        return PaddingSide(side)
    except ValueError:
        raise UnknownPaddingSideError(side) from None
