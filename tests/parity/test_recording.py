"""What the matrix measured gets into the file of results, and nothing that it did not."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.parity import recording
from tests.parity.features import FEATURES, PLAIN, features_of

from mobius_components import ArchitectureConfig

ROOT = Path(__file__).parents[2]
OK = {"max_abs": 1e-6, "max_rel": 2e-7}


def cell(layout, result=OK, *, ep="cpu", dtype="f32", scenario="one row"):
    return (layout, ep, dtype, scenario, result)


def cells(content, model_type, layout):
    return content["models"][model_type]["layouts"][layout]


def test_cells_are_merged_under_their_model_type():
    first = recording.merged({}, [cell("falcon"), cell("falcon-alibi", ep="default")], [])
    refused = {"refused": "no kernel"}
    second = recording.merged(first, [cell("falcon", refused, dtype="f16")], [])
    assert list(second["models"]) == ["falcon"]
    assert cells(second, "falcon", "falcon") == {
        "cpu": {"f16": {"one row": refused}, "f32": {"one row": OK}}
    }
    assert cells(second, "falcon", "falcon-alibi") == {"default": {"f32": {"one row": OK}}}
    assert "ALiBi" in second["models"]["falcon"]["features"]
    assert first["models"]["falcon"]["layouts"]["falcon"] == {"cpu": {"f32": {"one row": OK}}}


def test_a_failed_cell_is_removed():
    before = recording.merged({}, [cell("llama"), cell("llama", ep="default"), cell("gpt2")], [])
    after = recording.merged(before, [], [cell("llama"), cell("gpt2"), cell("phi")])
    assert list(after["models"]) == ["llama"]
    assert cells(after, "llama", "llama") == {"default": {"f32": {"one row": OK}}}


def test_cells_of_other_versions_are_dropped(monkeypatch):
    before = recording.merged({}, [cell("llama"), cell("gpt2")], [])
    monkeypatch.setattr(recording.metadata, "version", lambda name: "9")
    after = recording.merged(before, [cell("llama", ep="default")], [])
    assert set(cells(after, "llama", "llama")) == {"default"}
    assert set(cells(after, "gpt2", "gpt2")) == {"cpu"}  # it keeps the versions it was seen with
    assert after["models"]["llama"]["versions"]["transformers"] == "9"


def test_a_layout_that_is_gone_is_dropped():
    before = recording.merged({}, [cell("llama"), cell("gpt2")], [])
    before["models"]["llama"]["layouts"]["llama-1"] = {"cpu": {"f32": {"one row": OK}}}
    before["models"]["gone"] = {"versions": {}, "layouts": {"gone": {"cpu": {"f32": {"r": OK}}}}}
    after = recording.merged(before, [], [])
    assert {name: list(each["layouts"]) for name, each in after["models"].items()} == {
        "llama": ["llama"],
        "gpt2": ["gpt2"],
    }


PAGE = """
from tests.parity.recording import parity_results, pytest_addoption, pytest_configure

def test_right(parity_results):
    parity_results.record("llama", "cpu", "f32", "one row", 1.23456e-6, 2.34567e-7)
    parity_results.refused("llama", "cpu", "f16", "left padding", "no kernel")

def test_wrong(parity_results):
    parity_results.record("gpt2", "cpu", "f32", "one row", 1.0, 1.0)
    assert False
"""


def test_only_passing_tests_are_written(tmp_path):
    (tmp_path / "conftest.py").write_text(PAGE.split("\n\n")[0])
    (tmp_path / "test_it.py").write_text(PAGE.partition("\n\n")[2])
    file = tmp_path / "results.json"
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ROOT)
    result = subprocess.run(
        [*command, "-c", ROOT / "pyproject.toml", recording.OPTION, file, tmp_path],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert "1 failed, 1 passed" in result.stdout, result.stdout + result.stderr
    content = json.loads(file.read_text("utf-8"))
    assert list(content["models"]) == ["llama"]
    assert cells(content, "llama", "llama") == {
        "cpu": {
            "f16": {"left padding": {"refused": "no kernel"}},
            "f32": {"one row": {"max_abs": 1.23e-6, "max_rel": 2.35e-7}},
        }
    }


@pytest.mark.parametrize(
    ("layout", "features"),
    [
        ("gemma2", {"window", "softcap", "grouped heads", "multipliers"}),
        ("falcon-alibi", {"ALiBi", "biases", "layer norm", "tied head"}),
        ("phi3", {"window", "scaled rope", "partial rope", "grouped heads"}),
    ],
)
def test_features_come_from_the_architecture(layout, features):
    assert set(features_of(recording.architecture(layout))) == features


def test_every_field_is_a_feature_or_plain():
    read = {name for feature in FEATURES for name in feature.fields}
    fields = {field.name for field in dataclasses.fields(ArchitectureConfig)}
    assert read | PLAIN == fields, "say in features.py what a new field means for a reader"
    assert not read & PLAIN
