"""Writes down what the parity matrix measured: cells of passing tests, merged into a JSON file.

`pytest tests/parity --parity-results FILE` replaces the cells of FILE that ran, and no others;
`nox -s parity -- --record` does so with the file that `mobius models` and the table in the docs
read. A test that fails removes its cells, so a file never says more than what was seen to hold.
"""

from __future__ import annotations

import dataclasses
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from tests.parity.features import features_of
from tests.parity.reference import CONFIGS, VARIANTS, make_config

from mobius_components import ArchitectureConfig
from mobius_hf.registry import find_architecture

OPTION = "--parity-results"
PROPERTY = "parity"
LAYOUTS = frozenset({*CONFIGS, *VARIANTS})
MEASURED_WITH = ("onnxruntime", "torch", "transformers")

Cells = dict[str, dict[str, dict[str, Any]]]
"""EP -> dtype -> scenario -> `{"max_abs", "max_rel"}`, or `{"refused"}` with the reason."""


@dataclasses.dataclass
class ParityResults:
    """What one test measured.

    Attributes:
        cells: One `(layout, ep, dtype, scenario, result)` each, of plain values.
    """

    cells: list[tuple[str, str, str, str, dict[str, Any]]] = dataclasses.field(default_factory=list)

    def record(
        self, layout: str, ep: str, dtype: str, scenario: str, max_abs: float, max_rel: float
    ) -> None:
        """Note the largest difference of a cell.

        Args:
            layout: A `model_type`, or a key of `VARIANTS`.
            ep: Name of the execution provider.
            dtype: Short name of the dtype.
            scenario: How the model was run.
            max_abs: Largest absolute difference of a logit.
            max_rel: The same, relative to the largest logit of the reference.
        """
        result = {"max_abs": float(f"{max_abs:.2e}"), "max_rel": float(f"{max_rel:.2e}")}
        self.cells.append((layout, ep, dtype, scenario, result))

    def refused(self, layout: str, ep: str, dtype: str, scenario: str, reason: str) -> None:
        """Note that the build refused a cell, and why; the test has checked that it did."""
        self.cells.append((layout, ep, dtype, scenario, {"refused": reason}))


@pytest.fixture
def parity_results(request: pytest.FixtureRequest) -> ParityResults:
    """Where a test notes its cells; they count if it passes."""
    results = ParityResults()
    # Reports carry user properties from the process that ran the test to the one that writes.
    request.node.user_properties.append((PROPERTY, results.cells))
    return results


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, type=Path, help="JSON file to merge the parity matrix's cells into")


def pytest_configure(config: pytest.Config) -> None:
    # A worker of pytest-xdist reports to the process that has the option's plugin.
    file = config.getoption(OPTION, default=None)
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(file))


class _Recorder:
    """Collects the cells of reports and writes them when the session ends."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._passed: list[Any] = []
        self._failed: list[Any] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not report.skipped:
            kept = self._passed if report.passed else self._failed
            for name, cells in report.user_properties:
                kept.extend(cells if name == PROPERTY else [])

    def pytest_sessionfinish(self) -> None:
        before = json.loads(self._file.read_text("utf-8")) if self._file.is_file() else {}
        after = merged(before, self._passed, self._failed)
        self._file.write_text(json.dumps(after, indent=1) + "\n", "utf-8")


def merged(before: dict[str, Any], passed: list[Any], failed: list[Any]) -> dict[str, Any]:
    """Return the content `before` with cells that passed replaced, and cells that failed removed.

    Args:
        before: `{"models": {model_type: {"features", "layouts", "versions"}}}`, or nothing.
        passed: Cells as `ParityResults` holds them.
        failed: Cells of which at least one is wrong.
    """
    versions = {name: metadata.version(name) for name in MEASURED_WITH}
    models: dict[str, Any] = json.loads(json.dumps(before.get("models", {})))
    for layout, ep, dtype, scenario, result in passed:
        model = models.get(model_type_of(layout))
        if model is None or model["versions"] != versions:
            # What other versions gave is no longer known to hold.
            model = models[model_type_of(layout)] = {"versions": versions, "layouts": {}}
        cells: Cells = model["layouts"].setdefault(layout, {})
        cells.setdefault(ep, {}).setdefault(dtype, {})[scenario] = result
    for layout, ep, dtype, scenario, _ in failed:
        layouts = models.get(model_type_of(layout), {}).get("layouts", {})
        layouts.get(layout, {}).get(ep, {}).get(dtype, {}).pop(scenario, None)
    tidy = {name: _tidy(model) for name, model in sorted(models.items())}
    return {"models": {name: model for name, model in tidy.items() if model["layouts"]}}


def _tidy(model: dict[str, Any]) -> dict[str, Any]:
    """Return a model without empty branches, with the features of the layouts that stay."""
    known = {name: cells for name, cells in model["layouts"].items() if name in LAYOUTS}
    layouts = _without_empty(known)
    features = {each for layout in layouts for each in features_of(architecture(layout))}
    return {"features": sorted(features), "versions": model["versions"], "layouts": layouts}


def _without_empty(content: Any) -> Any:
    if not isinstance(content, dict):
        return content
    kept = {key: _without_empty(value) for key, value in sorted(content.items())}
    return {key: value for key, value in kept.items() if value != {}}


def model_type_of(layout: str) -> str:
    """Return the `model_type` of a layout."""
    return VARIANTS[layout][0] if layout in VARIANTS else layout


def architecture(layout: str) -> ArchitectureConfig:
    """Return the architecture that the tiny config of a layout describes."""
    raw = make_config(layout).to_dict()
    found = find_architecture(raw["model_type"], config=Path(layout), has_own_code=False)
    return found.to_config(raw, Path(layout))
