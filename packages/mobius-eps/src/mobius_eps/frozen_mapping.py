"""`FrozenMapping`: a string-to-string mapping that nothing can change, hashable and picklable.

`types.MappingProxyType` is neither, and only hides a dict that somebody else may still hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn


class FrozenMapping(Mapping[str, str]):
    """An immutable copy of a mapping; equal to any mapping with the same items."""

    __slots__ = ("_hash", "_items")

    _items: dict[str, str]
    _hash: int

    def __init__(self, items: Mapping[str, str] | None = None) -> None:
        """Copy `items`; later changes to the original are not seen.

        Args:
            items: What to copy; `None` for an empty mapping.
        """
        copied = dict(items) if items is not None else {}
        object.__setattr__(self, "_items", copied)
        object.__setattr__(self, "_hash", hash(frozenset(copied.items())))

    def __getitem__(self, key: str) -> str:
        """Return the value of `key`.

        Raises:
            KeyError: If there is no such key.
        """
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys in the order in which they were given."""
        return iter(self._items)

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        """Compare with any mapping, the order of keys left aside."""
        if not isinstance(other, Mapping):
            return NotImplemented
        return self._items == dict(other.items())

    def __hash__(self) -> int:
        """Return a hash that agrees with equality among frozen mappings."""
        return self._hash

    def __repr__(self) -> str:
        """Return an expression that makes an equal mapping."""
        return f"FrozenMapping({self._items!r})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse: the mapping is immutable.

        Raises:
            AttributeError: Always.
        """
        raise AttributeError(f"FrozenMapping is immutable; cannot set {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        """Refuse: the mapping is immutable.

        Raises:
            AttributeError: Always.
        """
        raise AttributeError(f"FrozenMapping is immutable; cannot delete {name!r}")

    def __copy__(self) -> FrozenMapping:
        """Return itself: nothing can change it."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenMapping:
        """Return itself: keys and values are immutable as well."""
        return self

    def __reduce__(self) -> tuple[type[FrozenMapping], tuple[dict[str, str]]]:
        """Pickle as the items; the hash of strings differs between processes."""
        return (FrozenMapping, (dict(self._items),))
