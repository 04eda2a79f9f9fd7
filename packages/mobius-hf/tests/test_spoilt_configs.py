"""Configs with one field spoilt: refused by the name of that field, or built with sound widths.

Cases C031, C130, C131: a wrong value is never computed with, and the message is about the file.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.parity.reference import CONFIGS, VARIANTS, make_config

from mobius_hf.config import read_config
from mobius_hf.errors import CheckpointConfigError
from mobius_hf.field_names import FIELD_NAMES
from mobius_hf.irrelevant_fields import IRRELEVANT
from mobius_hf.registry import find_architecture

PATH = Path("config.json")
LAYOUTS = sorted({*CONFIGS, *VARIANTS})
SAMPLE = 12
GONE = object()
# Never right, whatever the field: the message has to name it.
OF_NO_USE: dict[str, Any] = {
    "text": "nonsense",
    "nan": math.nan,
    "list of text": ["x"],
    "list of lists": [[]],
    "list of objects": [{}],
}
# May contradict another field, which the message may name instead.
DOUBTFUL: dict[str, Any] = {
    "gone": GONE,
    "null": None,
    "-1": -1,
    "-0.5": -0.5,
    "0": 0,
    "0.5": 0.5,
    "1": 1,
    "7": 7,
    "true": True,
    "false": False,
    "empty list": [],
    "empty object": {},
}
Change = tuple[tuple[str, ...], str]


@functools.cache
def _config(layout: str) -> dict[str, Any]:
    """Return the config of `layout` as its file has it."""
    text = make_config(layout).to_json_string(use_diff=True)
    path = Path(f"{layout}.json")
    path.write_text(text)
    return read_config(path)


def _fields(raw: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each field that may matter, those of nested objects too."""
    for name, value in raw.items():
        if name in IRRELEVANT and not before:
            continue
        yield (*before, name)
        if isinstance(value, dict):
            yield from _fields(value, (*before, name))


def _changes(layout: str) -> list[Change]:
    return [(field, kind) for field in _fields(_config(layout)) for kind in OF_NO_USE | DOUBTFUL]


def _spoil(layout: str, field: tuple[str, ...], kind: str) -> dict[str, Any]:
    raw = copy.deepcopy(_config(layout))
    holder = raw
    for name in field[:-1]:
        holder = holder[name]
    value = (OF_NO_USE | DOUBTFUL)[kind]
    if value is GONE:
        del holder[field[-1]]
    else:
        holder[field[-1]] = value
    return raw


def _numbers(value: object) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict):
        yield from _numbers(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _numbers(each)


def _check(layout: str, field: tuple[str, ...], kind: str) -> None:
    raw = _spoil(layout, field, kind)
    architecture = find_architecture(raw["model_type"], config=PATH, has_own_code=False)
    where = f"{layout}: {'.'.join(field)} {kind}"
    try:
        config = architecture.to_config(raw, PATH)
    except CheckpointConfigError as error:
        message = str(error)
        named = [name for name in _config(layout) if name in message and name != "model_type"]
        assert field[-1] in message or (kind in DOUBTFUL and named), f"{where}: {message}"
        ours = [name for name in FIELD_NAMES if name in message]
        assert not ours, f"{where}: names of ours in {message}"
        return
    values = dataclasses.asdict(dataclasses.replace(config, dtype=config.dtype))
    assert not any(map(math.isnan, _numbers(values))), where
    if config.num_hidden_layers > 10:  # by default, where the field is gone
        return
    for name, parameter in architecture.make_module(config).named_parameters():
        assert parameter.shape is not None
        assert all(size > 0 for size in parameter.shape.numpy()), f"{where}: {name}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_some_spoilt_fields(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for field, kind in random.Random(layout).sample(_changes(layout), SAMPLE):
        _check(layout, field, kind)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_spoilt_field(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for field, kind in _changes(layout):
        _check(layout, field, kind)
