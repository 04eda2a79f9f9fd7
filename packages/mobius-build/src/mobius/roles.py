"""`Role`: what a model of a package is for, which decides what fusions it gets."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from mobius_eps import MobiusError


class Role(enum.StrEnum):
    """What a model is for; equal to its plain name."""

    DECODER = "decoder"
    VISION = "vision"
    ENCODER = "encoder"
    EMBEDDING = "embedding"


ROLES: Mapping[str, Role] = MappingProxyType(
    {
        "model": Role.DECODER,
        "decoder": Role.DECODER,
        "vision": Role.VISION,
        "embedding": Role.EMBEDDING,
        "encoder": Role.ENCODER,
    }
)
"""Package key -> role. A task that uses another key states the role itself."""


class UnknownRoleError(MobiusError, ValueError):
    """No role has the name, or no package key has a role."""

    def __init__(self, what: str, name: object, known: Iterable[str]) -> None:
        """Say what was asked for (`what` is its kind) and what there is."""
        supported = sorted(known)
        message = f"Unknown {what} {name!r}. Supported: {supported}"
        near = difflib.get_close_matches(str(name), supported, n=1)
        super().__init__(f"{message}. Did you mean {near[0]!r}?" if near else message)


def parse_role(role: str) -> Role:
    """Return the role with this name.

    Raises:
        UnknownRoleError: if there is none.
    """
    try:
        return Role(role)
    except ValueError:
        raise UnknownRoleError("model role", role, map(str, Role)) from None


def role_of(key: str) -> Role:
    """Return the role of the model under `key` in a package.

    Raises:
        UnknownRoleError: if the key is not in `ROLES`; a role is never guessed.
    """
    if key not in ROLES:
        raise UnknownRoleError("package key", key, list(ROLES))
    return ROLES[key]
