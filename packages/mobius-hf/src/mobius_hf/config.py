"""`config.json` -> `ConfigFields`: values with transformers' defaults, and which of them were read.

A field that nobody reads could change the numbers, so `ConfigFields.refuse_unread` turns it down,
unless it is known to be irrelevant (`IRRELEVANT`) or has the value that transformers assumes.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from mobius_hf.config_values import is_finite, is_real, shortened
from mobius_hf.errors import CheckpointConfigError
from mobius_hf.irrelevant_fields import IRRELEVANT, NEUTRAL
from mobius_hf.transformers_config import find_config_class

_DTYPES = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
}


def read_config(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`.

    Raises:
        CheckpointConfigError: if it is not a JSON object.
    """
    try:
        content = json.loads(path.read_bytes(), object_hook=_special_number)
    except ValueError as error:
        raise CheckpointConfigError(f"{path} is not JSON: {error}. Download it again.") from error
    if not isinstance(content, dict):
        raise CheckpointConfigError(
            f"{path} holds a JSON {type(content).__name__}; needed: an object. Download it again."
        )
    return content


def _special_number(value: dict[str, Any]) -> Any:
    """Return the number that JSON has no word for, which transformers 5 writes as an object."""
    return float(value["__float__"]) if value.keys() == {"__float__"} else value


def checkpoint_dtype(raw: Mapping[str, Any], path: Path) -> ir.DataType:
    """Return the element type that a config states: `dtype`, else `torch_dtype`, else float32.

    Raises:
        CheckpointConfigError: if it is not a float type that graphs are built in.
    """
    stated = raw.get("dtype")
    if stated is None:
        stated = raw.get("torch_dtype")
    if stated is None:
        return ir.DataType.FLOAT
    dtype = _DTYPES.get(str(stated).removeprefix("torch."))
    if dtype is None:
        raise CheckpointConfigError(
            f"{path}: dtype is {stated!r}; needed: one of {', '.join(_DTYPES)}."
        )
    return dtype


def require(raw: Mapping[str, Any], names: tuple[str, ...], model_type: str, path: Path) -> None:
    """Refuse a config that lacks one of `names`, although transformers has a default for it.

    A field with two names has them in one string, with `|` between.

    Raises:
        CheckpointConfigError: naming the fields that are missing.
    """
    missing = [name for name in names if all(raw.get(either) is None for either in name.split("|"))]
    if missing:
        listed = [" or ".join(map(repr, name.split("|"))) for name in missing]
        close = difflib.get_close_matches(missing[0], raw.keys() - names, cutoff=0.8)
        hint = f" Did you mean {missing[0]!r} by {close[0]!r}?" if close else ""
        raise CheckpointConfigError(
            f"{path} lacks {', '.join(listed)}, which every {model_type!r} config has.{hint}"
        )


def require_positive(
    raw: Mapping[str, Any], names: tuple[str, ...], model_type: str, path: Path
) -> None:
    """Refuse a config in which a number among `names` is not above zero.

    Raises:
        CheckpointConfigError: naming the field and its value.
    """
    for name in (each for alternatives in names for each in alternatives.split("|")):
        value = raw.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
            raise CheckpointConfigError(
                f"{path}: {name} is {value!r}; a {model_type!r} config needs a number above zero."
            )


@dataclasses.dataclass(frozen=True)
class FieldPlace:
    """Where a config has a field.

    Attributes:
        name: Its name in the file, with those of the objects that it lies in before it.
        value: Its value.
        stated: The file has it; else its value is a default.
    """

    name: str
    value: Any
    stated: bool


class ConfigFields:
    """The fields of one config; every reading method marks its field as read.

    Values come from transformers where it knows the `model_type`, otherwise from the file, with
    `defaults` for what the file leaves out.

    Attributes:
        raw: The file's own content.
        path: The file, for messages.
        model_type: Its `model_type`.
    """

    def __init__(
        self,
        raw: Mapping[str, Any],
        *,
        path: Path,
        model_type: str,
        resolved: Mapping[str, Any] | None,
        defaults: Mapping[str, Any],
    ) -> None:
        self.raw = raw
        self.path = path
        self.model_type = model_type
        self._values = {**defaults, **(raw if resolved is None else resolved)}
        self._read: set[str] = set()

    def value(self, name: str) -> Any:
        """Return the value of `name`, `None` if it has none."""
        self._read.add(name)
        return self._values.get(name)

    def integer(self, name: str) -> int:
        """Return the integer `name`."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.unfit(name, value, "an integer")
        return value

    def optional_integer(self, name: str) -> int | None:
        """Return the integer `name`, or `None`."""
        return None if self.value(name) is None else self.integer(name)

    def integer_or(self, name: str, default: int) -> int:
        """Return the integer `name`, `default` if it has no value."""
        return default if self.value(name) is None else self.integer(name)

    def words(self, name: str, known: Collection[str]) -> tuple[str, ...]:
        """Return the list `name`, every item of which is one of the strings `known`."""
        value = self.value(name)
        if not isinstance(value, list | tuple) or not all(
            isinstance(each, str) and each in known for each in value
        ):
            raise self.unfit(name, value, f"a list of {' or '.join(map(repr, known))}")
        return tuple(value)

    def layer_numbers(self, name: str) -> tuple[int, ...] | None:
        """Return the list `name` of layers, counted from 0; `None` if it has no value."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(type(each) is int for each in value):
            raise self.unfit(name, value, "a list of layers, counted from 0")
        return tuple(value)

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """Return the list `name` of `count` numbers; infinite ones are numbers too."""
        value = self.value(name)
        is_list = isinstance(value, list | tuple) and len(value) == count
        if not is_list or not all(map(is_real, value)):
            raise self.unfit(name, value, f"a list of {count} numbers")
        return tuple(map(float, value))

    def first_integer(self, *names: str) -> int:
        """Return the integer of the first of a field's `names` that has a value."""
        values = [self.optional_integer(name) for name in names]
        for value in values:
            if value is not None:
                return value
        raise self.unfit(names[0], None, "an integer")

    def number(self, name: str) -> float:
        """Return the number `name`."""
        value = self.value(name)
        if not is_finite(value):
            raise self.unfit(name, value, "a number")
        return float(value)

    def reciprocal(self, name: str) -> float:
        """Return one divided by the number `name`, for a factor that a divisor stands for."""
        value = self.number(name)
        if value == 0:
            raise self.unfit(name, value, "a number other than zero")
        return 1.0 / value

    def reciprocal_root(self, name: str) -> float:
        """Return one divided by the square root of the number `name`."""
        value = self.number(name)
        if value <= 0:
            raise self.unfit(name, value, "a number above zero")
        return float(value**-0.5)

    def quotient(self, name: str, divisor: str) -> int:
        """Return the whole part of the integer `name` divided by the integer `divisor`."""
        value, parts = self.integer(name), self.integer(divisor)
        if not 0 < parts <= value:
            needed = f"at least {self._name_in_file(divisor)}, which is {parts}"
            raise self.unfit(name, value, needed)
        return value // parts

    def flag(self, name: str) -> bool:
        """Return the boolean `name`."""
        value = self.value(name)
        if not isinstance(value, bool):
            raise self.unfit(name, value, "true or false")
        return value

    def text(self, name: str) -> str:
        """Return the string `name`."""
        value = self.value(name)
        if not isinstance(value, str):
            raise self.unfit(name, value, "a string")
        return value

    def unfit(self, name: str, value: object, needed: str) -> CheckpointConfigError:
        """Return the error for a field with a value that cannot be used."""
        return self._refusal(f"{self._name_in_file(name)} is {shortened(value)}", needed)

    def unfit_together(
        self, found: Mapping[str, object], field: str, value: object, needed: str
    ) -> CheckpointConfigError:
        """Return the error for fields that together make a value that cannot be used.

        Args:
            found: The fields, as the file names them, and their values.
            field: What they make.
            value: Its value.
            needed: What it has to be.
        """
        listed = ", ".join(f"{name} is {shortened(each)}" for name, each in found.items())
        return self._refusal(f"{listed}, which makes {field} {shortened(value)}", needed)

    def _refusal(self, what: str, needed: str) -> CheckpointConfigError:
        return CheckpointConfigError(
            f"{self.path}: {what}; a {self.model_type!r} config needs {needed}."
        )

    def find(self, name: str) -> FieldPlace | None:
        """Return where the field `name` is that was read; `None` if none was.

        It may lie in an object that was read, such as `rope_parameters`.
        """
        if name in self._read and self._values.get(name) is not None:
            own = self._name_in_file(name)
            return FieldPlace(own, self._values[name], own in self.raw)
        for outer in sorted(self._read):
            inner = self._values.get(outer)
            if isinstance(inner, Mapping) and inner.get(name) is not None:
                own = self._name_in_file(outer)
                return FieldPlace(f"{own}.{name}", inner[name], own in self.raw)
        return None

    def _name_in_file(self, name: str) -> str:
        """Return what the file calls the field `name`, for which transformers knows other names."""
        if name in self.raw:
            return name
        if name == "rope_parameters" and "rope_scaling" in self.raw:
            return "rope_scaling"
        names = getattr(find_config_class(self.model_type), "attribute_map", {})
        others = (other for other, own in names.items() if own == name and other in self.raw)
        return next(others, name)

    def refuse_unread(self, irrelevant: frozenset[str], fixed: Mapping[str, object]) -> None:
        """Refuse fields of the file that no one has read and that may matter.

        Args:
            irrelevant: Further fields that do not change the numbers of this family.
            fixed: Fields that have only one value that the family can be built for.

        Raises:
            CheckpointConfigError: naming the fields and their values.
        """
        fixed = {**NEUTRAL, **fixed}
        for name, only in fixed.items():
            if self.raw.get(name) is not None and self.raw[name] != only:
                raise self.unfit(name, self.raw[name], f"{only!r}, the only value supported")
        known = self._read | irrelevant | IRRELEVANT | fixed.keys()
        unread = {
            name: value
            for name, value in self.raw.items()
            if name not in known and not name.startswith("_") and value is not None
        }
        if unread:
            defaults = self._class_defaults()
            unread = {
                name: value
                for name, value in unread.items()
                if name not in defaults or defaults[name] != value
            }
        if unread:
            listed = ", ".join(f"{name} = {shortened(value)}" for name, value in unread.items())
            raise CheckpointConfigError(
                f"{self.path} has fields that the {self.model_type!r} architecture does not read: "
                f"{listed}. Building would ignore them and may give wrong numbers. Remove a field "
                "from config.json if it does not change what the model computes."
            )

    def _class_defaults(self) -> dict[str, Any]:
        config_class = find_config_class(self.model_type)
        return {} if config_class is None else config_class().to_dict()
