"""`discover()`: the execution providers that other installed distributions bring.

A distribution advertises them in the entry-point group `mobius.execution_providers`. Each entry
point loads to an `EpCapabilities`, or to a callable without arguments that returns one or an
iterable of them::

    [project.entry-points."mobius.execution_providers"]
    my-ep = "my_package.capabilities:MY_EP"
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from importlib import metadata
from typing import Final

from mobius_eps.capabilities import EpCapabilities
from mobius_eps.errors import EpPluginError

ENTRY_POINT_GROUP: Final = "mobius.execution_providers"


def discover(reserved: Collection[str]) -> dict[str, EpCapabilities]:
    """Load every advertised execution provider.

    Args:
        reserved: Names that no plugin may use: those of the built-in providers.

    Returns:
        The providers by name.

    Raises:
        EpPluginError: If an entry point cannot be loaded, brings something else than
            `EpCapabilities`, uses a reserved name, or uses a name that another one uses. The
            message names the distribution.
    """
    found: dict[str, EpCapabilities] = {}
    owners: dict[str, str] = {}
    for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        owner = _describe(entry_point)
        for capabilities in _load(entry_point, owner):
            name = capabilities.name
            if name in reserved:
                raise EpPluginError(
                    f"{owner} brings an execution provider named {name!r}, which is built in; "
                    "it must use another name"
                )
            if name in owners:
                raise EpPluginError(
                    f"{owner} and {owners[name]} both bring an execution provider named "
                    f"{name!r}; uninstall one of them"
                )
            found[name] = capabilities
            owners[name] = owner
    return found


def _describe(entry_point: metadata.EntryPoint) -> str:
    dist = entry_point.dist
    origin = f"distribution {dist.name} {dist.version}" if dist else "an unknown distribution"
    return f"{origin} (entry point {entry_point.name} = {entry_point.value})"


def _load(entry_point: metadata.EntryPoint, owner: str) -> tuple[EpCapabilities, ...]:
    try:
        loaded = entry_point.load()
        if callable(loaded):
            loaded = loaded()
        brought = tuple(loaded) if isinstance(loaded, Iterable) else (loaded,)
    except Exception as error:
        raise EpPluginError(
            f"{owner} failed to load its execution provider: {type(error).__name__}: {error}"
        ) from error
    for item in brought:
        if not isinstance(item, EpCapabilities):
            raise EpPluginError(
                f"{owner} brings a {type(item).__name__}; an EpCapabilities is needed, or a "
                "callable that returns one or an iterable of them"
            )
    return brought
