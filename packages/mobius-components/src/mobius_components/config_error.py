"""`ConfigError`: a field of a configuration from which no graph can be built."""

from __future__ import annotations


class ConfigError(ValueError):
    """A field of a configuration has a value that no graph can be built from.

    Attributes:
        field: Name of the field.
        value: What it is.
        needed: What it has to be; another field that it depends on stands there by name, with
            `, which is` and its value behind.
        owner: Class that has the field.
    """

    def __init__(
        self, field: str, value: object, needed: str, owner: str = "ArchitectureConfig"
    ) -> None:
        super().__init__(f"{owner}.{field} is {value!r}; needed: {needed}")
        self.field = field
        self.value = value
        self.needed = needed
        self.owner = owner
