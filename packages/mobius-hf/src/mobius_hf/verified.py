"""`verified_families`: the supported model types, with what `verified.json` says of each.

The file holds what the parity matrix measured against transformers (`nox -s parity`); no one writes
it by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from mobius.families import Cell, Family
from mobius_hf.registry import supported_model_types

FILE = "verified.json"


def verified_families(source: str) -> tuple[Family, ...]:
    """Return every supported family; those that nothing was measured of have no cells.

    Args:
        source: Name of the source that offers them.
    """
    text = resources.files("mobius_hf").joinpath(FILE).read_text("utf-8")
    measured: Mapping[str, Any] = json.loads(text)["models"]
    return tuple(_family(name, measured.get(name), source) for name in supported_model_types())


def _family(model_type: str, measured: Mapping[str, Any] | None, source: str) -> Family:
    if measured is None:
        return Family(model_type=model_type, source=source)
    return Family(
        model_type=model_type,
        source=source,
        features=tuple(measured["features"]),
        cells=tuple(_cells(measured["layouts"])),
        versions=tuple(measured["versions"].items()),
    )


def _cells(layouts: Mapping[str, Any]) -> Iterator[Cell]:
    for layout, eps in layouts.items():
        for ep, dtypes in eps.items():
            for dtype, scenarios in dtypes.items():
                for scenario, result in scenarios.items():
                    yield Cell(layout=layout, ep=ep, dtype=dtype, scenario=scenario, **result)
