"""The errors of mobius: `MobiusError` and what this package raises.

Every error is also the builtin that callers expect, so `except ValueError` keeps working. All of
them survive pickling, because builds run in worker processes too.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# ORT names its providers CUDAExecutionProvider, DmlExecutionProvider, ...; users paste those.
_ORT_SUFFIX = "executionprovider"
# Too far from the name here to be found as close.
_ORT_NAMES = {"nvtensorrtrtx": "trt-rtx", "tensorrt": "trt-rtx"}
# As low as finds dml for directml and mlx for metal.
_CLOSE = 0.5


class MobiusError(Exception):
    """Base of every error that a mobius package raises on purpose."""


class InvalidCapabilitiesError(MobiusError, ValueError):
    """A field of `EpCapabilities` has a value that cannot be, alone or beside another field."""


class EpRegistrationError(MobiusError, ValueError):
    """An execution provider cannot be registered: not a descriptor, or its name is taken."""


class EpPluginError(MobiusError, RuntimeError):
    """An installed distribution advertises an execution provider that cannot be used."""


class UnknownEpError(MobiusError, ValueError):
    """No execution provider has this name.

    Attributes:
        name: What was asked for.
        supported: Every name that is registered, sorted.
    """

    def __init__(self, name: object, supported: Iterable[str]) -> None:
        """Keep the name and the supported names; the message is made from them.

        Args:
            name: What was asked for, of any type.
            supported: The registered names, in any order.
        """
        self.name = name
        self.supported: tuple[str, ...] = tuple(sorted(supported))
        super().__init__(name, self.supported)

    def __str__(self) -> str:
        """Return the message, with the closest supported name where one is close."""
        message = f"Unknown execution provider {self.name!r}. Supported: {list(self.supported)}"
        close = self._closest()
        return message if close is None else f"{message}. Did you mean {close!r}?"

    def _closest(self) -> str | None:
        if not isinstance(self.name, str):
            return None
        wanted = self.name.strip().lower().replace("_", "-").removesuffix(_ORT_SUFFIX)
        wanted = _ORT_NAMES.get(wanted, wanted)
        matches = difflib.get_close_matches(wanted, self.supported, n=1, cutoff=_CLOSE)
        return matches[0] if matches else None
