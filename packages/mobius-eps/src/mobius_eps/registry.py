"""`EpRegistry`: execution providers by name; `ep_registry` is the one that builds use.

Names that were given to the registry (the built-in ones, then `register`) come before those of
plugins, and finding them never loads a plugin: a broken plugin cannot break a build for `cuda`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Final

from mobius_eps.builtin import BUILTIN_EPS
from mobius_eps.capabilities import EpCapabilities
from mobius_eps.discovery import discover
from mobius_eps.errors import EpRegistrationError, UnknownEpError

Discover = Callable[[Collection[str]], Mapping[str, EpCapabilities]]

# Set while this thread or task looks for plugins: a plugin may ask the registry itself.
_discovering: ContextVar[bool] = ContextVar("mobius_discovering", default=False)


class EpRegistry(Mapping[str, EpCapabilities]):
    """Execution providers by name: a mapping that can be added to from any thread.

    Plugins are looked for once, when a name is not among the given ones or when all names are
    wanted. If that fails the error is raised, and the next such question tries again.
    """

    def __init__(
        self, capabilities: Iterable[EpCapabilities] = (), *, discover: Discover | None = None
    ) -> None:
        """Start with the given providers.

        Args:
            capabilities: Providers to start with; plugins may not use their names.
            discover: Called with those names when plugins are looked for; `None` for no plugins.

        Raises:
            EpRegistrationError: If two providers have the same name.
        """
        self._lock = threading.Lock()
        # Replaced on every change, never changed in place: readers need no lock.
        self._given: Mapping[str, EpCapabilities] = {}
        for item in capabilities:
            self.register(item)
        self._reserved = frozenset(self._given)
        self._discover = discover
        self._plugins: Mapping[str, EpCapabilities] | None = None if discover else {}

    def register(self, capabilities: EpCapabilities, overwrite: bool = False) -> None:
        """Add a provider under its own name; it goes before a plugin of that name.

        Args:
            capabilities: The provider.
            overwrite: Replace a registered provider of that name instead of refusing.

        Raises:
            EpRegistrationError: If this is no `EpCapabilities`, or the name is taken and
                `overwrite` is False.
        """
        if not isinstance(capabilities, EpCapabilities):
            raise EpRegistrationError(
                f"Cannot register {capabilities!r}: an EpCapabilities is needed"
            )
        name = capabilities.name
        with self._lock:
            if name in self._given and not overwrite:
                raise EpRegistrationError(
                    f"Execution provider {name!r} is registered already; pass overwrite=True to "
                    "replace it, or use another name"
                )
            self._given = {**self._given, name: capabilities}

    def require(self, name: str) -> EpCapabilities:
        """Return the provider of that name.

        Raises:
            UnknownEpError: If there is none; the message lists the names that there are.
            EpPluginError: If the name is not a given one and an installed plugin is broken.
        """
        capabilities = self.get(name)
        if capabilities is None:
            raise UnknownEpError(name, self)
        return capabilities

    def names(self) -> tuple[str, ...]:
        """Return every name, sorted."""
        return tuple(sorted(self))

    def __getitem__(self, name: str) -> EpCapabilities:
        """Return the provider of that name.

        Raises:
            KeyError: If there is none; `get` returns `None` and `require` explains.
            EpPluginError: If the name is not a given one and an installed plugin is broken.
        """
        given = self._given.get(name)
        return given if given is not None else self._found()[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names as they are now: given ones, then those of plugins."""
        return iter({**self._given, **self._found()})

    def __len__(self) -> int:
        """Return the number of names."""
        return len({**self._given, **self._found()})

    def __repr__(self) -> str:
        """Return the names that are known so far; looks for no plugin."""
        return f"EpRegistry({sorted({**self._given, **(self._plugins or {})})})"

    def _found(self) -> Mapping[str, EpCapabilities]:
        plugins = self._plugins
        if plugins is not None:
            return plugins
        if self._discover is None or _discovering.get():
            return {}
        # No lock is held here: a plugin's import may wait for a thread that waits for this lock.
        # Two threads may therefore both look; the first result stays.
        token = _discovering.set(True)
        try:
            found = dict(self._discover(self._reserved))
        finally:
            _discovering.reset(token)
        with self._lock:
            if self._plugins is None:
                self._plugins = found
            return self._plugins


ep_registry: Final = EpRegistry(BUILTIN_EPS, discover=discover)


def register_ep(capabilities: EpCapabilities, *, overwrite: bool = False) -> None:
    """Add an execution provider to `ep_registry`.

    Args:
        capabilities: The provider.
        overwrite: Replace a registered provider of that name instead of refusing.

    Raises:
        EpRegistrationError: If this is no `EpCapabilities`, or the name is taken.
    """
    ep_registry.register(capabilities, overwrite=overwrite)


def get_ep(name: str) -> EpCapabilities:
    """Return the execution provider of that name from `ep_registry`.

    Raises:
        UnknownEpError: If there is none.
        EpPluginError: If the name is not a given one and an installed plugin is broken.
    """
    return ep_registry.require(name)
