"""`mobius models`: what the installed sources offer, as they offer it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from mobius import families
from mobius.families import Cell, Family

Run = Callable[..., Any]
CELL = Cell(
    layout="one-wide", ep="cpu", dtype="f32", scenario="left padding", max_abs=2e-6, max_rel=4e-7
)
ONE = Family(
    model_type="one",
    source="zoo",
    features=("window", "softcap"),
    cells=(
        CELL,
        Cell(layout="one", ep="mlx", dtype="f16", scenario="one row", refused="no kernel"),
    ),
    versions=(("transformers", "5"),),
)
TWO = Family(model_type="two", source="zoo")


class Zoo:
    def families(self) -> tuple[Family, ...]:
        return TWO, ONE


class Attic:
    def families(self) -> tuple[Family, ...]:
        return (Family(model_type="one", source="attic"),)


class EntryPoint:
    def __init__(self, source: object) -> None:
        self.load = lambda: source


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    found = [EntryPoint(Zoo()), EntryPoint(object()), EntryPoint(Attic())]  # one offers nothing
    monkeypatch.setattr(families.metadata, "entry_points", lambda group: found)
    return found


def test_overview(run: Run) -> None:
    result = run("models")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert result.stdout.split()[:4] == ["model_type", "f32", "EPs", "Features"]  # no f16, no bf16
    assert ["one", "4.0e-07", "1", "window,", "softcap"] in lines
    assert ["two", "-", "-"] in lines
    assert "of graphs for cpu, or as many of them" in " ".join(result.stdout.split())


def test_one_in_full(run: Run) -> None:
    text = " ".join(run("models", "one").stdout.split())
    assert text.startswith(
        "one from attic Not measured. one from zoo, measured with transformers 5"
    )
    assert "one-wide cpu f32 left padding 2.0e-06 4.0e-07" in text
    assert "one mlx f16 one row - - no kernel" in text
    assert "two" not in text


def test_as_json(run: Run) -> None:
    attic, one, two = json.loads(run("models", "--json").stdout)
    assert (attic["model_type"], attic["source"]) == ("one", "attic")
    assert one["cells"][0] == {
        "layout": "one-wide",
        "ep": "cpu",
        "dtype": "f32",
        "scenario": "left padding",
        "max_abs": 2e-6,
        "max_rel": 4e-7,
        "refused": None,
    }
    assert one["versions"] == {"transformers": "5"}
    assert two["cells"] == []
    assert [each["model_type"] for each in json.loads(run("models", "two", "--json").stdout)] == [
        "two"
    ]


def test_an_unknown_model_type(run: Run) -> None:
    result = run("models", "onee")
    assert result.exit_code == 1
    text = " ".join(result.stderr.replace("│", "").split())
    assert "The model type 'onee' is not built. Did you mean 'one'? `mobius models` lists" in text


@pytest.mark.parametrize("arguments", [["models"], ["models", "one"]])
def test_no_source(run: Run, installed: list[EntryPoint], arguments: list[str]) -> None:
    installed.clear()
    result = run(*arguments)
    assert result.exit_code == 1
    text = " ".join(result.stderr.replace("│", "").split())
    assert "pip install 'mobius-build[hf]'" in text
