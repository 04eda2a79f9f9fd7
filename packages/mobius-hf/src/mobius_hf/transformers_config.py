"""A config through transformers' own class: its defaults, and what it means by a refusal."""

from __future__ import annotations

import contextlib
import copy
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mobius_hf.config_values import is_real, shortened
from mobius_hf.errors import CheckpointConfigError


def resolve(raw: Mapping[str, Any], model_type: str, path: Path) -> dict[str, Any] | None:
    """Return the fields as transformers sees them; `None` if it does not know `model_type`.

    Raises:
        CheckpointConfigError: if transformers refuses the values.
    """
    config_class = find_config_class(model_type)
    if config_class is None:
        return None
    # transformers changes nested dictionaries in place; and a dtype would make it import torch.
    values = copy.deepcopy(
        {
            key: value
            for key, value in raw.items()
            if key not in ("dtype", "torch_dtype", "quantization_config")
        }
    )
    try:
        return dict(config_class.from_dict(values).to_dict())
    except Exception as error:  # whatever a config class of transformers raises
        raise refused_by_transformers(config_class, values, path, error) from error


def refused_by_transformers(
    config_class: Any, values: dict[str, Any], path: Path, error: Exception
) -> CheckpointConfigError:
    """Return the error for a config that transformers refuses, with the field that it means.

    Args:
        config_class: Its class.
        values: What it was given.
        path: The file, for messages.
        error: What it raised.
    """
    return CheckpointConfigError(
        f"transformers refuses {path} as a {config_class.model_type!r} config: {error}"
        f"{_hint(config_class, values, str(error))}"
    )


def _hint(config_class: Any, values: dict[str, Any], message: str) -> str:
    """Return which fields transformers means, where its `message` does not name one of the file."""
    if any(f"'{path[-1]}'" in message for path in _leaves(values)):
        return ""
    if culprits := _without_which(config_class, values):
        return f" It takes it without any one of: {_listed(culprits)}."
    if culprits := _not_above_zero(config_class, values):
        return f" Look at what is null or not above zero: {_listed(culprits)}."
    told = (rf"(?<![\w.]){re.escape(str(value))}(?![\w.])" for value in values.values())
    culprits = {
        name: value
        for (name, value), pattern in zip(values.items(), told, strict=True)
        if re.search(pattern, message)
    }
    return f" Look at the fields with these values: {_listed(culprits)}." if culprits else ""


def _listed(culprits: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {shortened(value, 400)}" for name, value in culprits.items())


def _without_which(config_class: Any, values: dict[str, Any]) -> dict[str, object]:
    """Return the fields, and their values, any one of which makes transformers refuse the rest.

    Its messages name what it computes with, which may have another name in the file or none.
    """
    found: dict[str, object] = {}
    for path in _leaves(values):
        rest = copy.deepcopy(values)
        holder = rest
        for name in path[:-1]:
            holder = holder[name]
        value = holder.pop(path[-1])
        try:
            config_class.from_dict(rest).to_dict()
        except Exception:  # it is not this field, or not this one alone
            continue
        found[".".join(path)] = value
    return found


def _not_above_zero(config_class: Any, values: Mapping[str, Any]) -> dict[str, object]:
    """Return the fields that are null or not above zero although their default is."""
    defaults = config_class().to_dict()
    return {
        name: value
        for name, value in values.items()
        if (value is None or (is_real(value) and value <= 0))
        and is_real(defaults.get(name))
        and defaults[name] > 0
    }


def _leaves(values: Mapping[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        yield (*before, name)
        if isinstance(value, Mapping):
            yield from _leaves(value, (*before, name))


def find_config_class(model_type: str) -> Any:
    """Return transformers' class of configs of `model_type`; `None` if it has none."""
    # Here, not at the top: transformers takes seconds, and most of Mobius never needs it.
    with _without_torch_notice():
        from transformers import CONFIG_MAPPING

    try:
        return CONFIG_MAPPING[model_type]
    except KeyError:
        return None


@contextlib.contextmanager
def _without_torch_notice() -> Iterator[None]:
    """Keep transformers from telling, when it is first imported, that torch is not installed.

    It says that models are not available then; Mobius makes them without torch.
    """

    def other(record: logging.LogRecord) -> bool:
        return "PyTorch was not found" not in record.getMessage()

    logger = logging.getLogger("transformers")
    logger.addFilter(other)
    try:
        yield
    finally:
        logger.removeFilter(other)
