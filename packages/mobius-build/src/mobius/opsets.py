"""`parse_opset`: what a user gives as an opset -> the version, or an error that says the range."""

from __future__ import annotations

from mobius_eps import MobiusError
from mobius_eps.capabilities import NEWEST_OPSET, OLDEST_OPSET


class UnsupportedOpsetError(MobiusError, ValueError):
    """No model can be built for the opset."""

    def __init__(self, opset: object) -> None:
        """Create the error for what was given."""
        super().__init__(opset)
        self.opset = opset

    def __str__(self) -> str:
        """Return what was given and what is needed."""
        return (
            f"Unsupported opset {self.opset!r}; an int from {OLDEST_OPSET} to {NEWEST_OPSET} is "
            "needed, or None for the newest one that the execution provider runs."
        )


def parse_opset(opset: int | None) -> int | None:
    """Return the opset if models can be built for it.

    Raises:
        UnsupportedOpsetError: (a `ValueError`) if they cannot.
    """
    if opset is None:
        return None
    if isinstance(opset, bool) or not isinstance(opset, int):
        raise UnsupportedOpsetError(opset)
    if not OLDEST_OPSET <= opset <= NEWEST_OPSET:
        raise UnsupportedOpsetError(opset)
    return opset
