"""What the source offers of its families is what the file of measurements holds, and no more."""

from __future__ import annotations

import json
from importlib import resources

import pytest

from mobius.families import Catalogue, Cell, known_families
from mobius_hf import verified
from mobius_hf.registry import supported_model_types
from mobius_hf.source import source

CONTENT = {
    "models": {
        "llama": {
            "features": ["biases", "scaled rope"],
            "versions": {"transformers": "5.24.0"},
            "layouts": {
                "llama": {
                    "cpu": {"f32": {"one row": {"max_abs": 1e-6, "max_rel": 2e-7}}},
                    "webgpu": {"f16": {"left padding": {"refused": "no kernel"}}},
                }
            },
        }
    }
}


def test_the_source_is_a_catalogue_of_what_it_builds() -> None:
    assert isinstance(source, Catalogue)
    assert tuple(each.model_type for each in source.families()) == supported_model_types()
    assert set(source.families()) <= set(known_families())


def test_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    (tmp_path / verified.FILE).write_text(json.dumps(CONTENT), "utf-8")
    monkeypatch.setattr(resources, "files", lambda package: tmp_path)
    families = {each.model_type: each for each in source.families()}
    llama = families["llama"]
    assert llama.features == ("biases", "scaled rope")
    assert llama.cells == (
        Cell(layout="llama", ep="cpu", dtype="f32", scenario="one row", max_abs=1e-6, max_rel=2e-7),
        Cell(
            layout="llama", ep="webgpu", dtype="f16", scenario="left padding", refused="no kernel"
        ),
    )
    assert llama.verified() == {"cpu": ("f32",)}
    assert (llama.largest("f32"), llama.largest("f16")) == (2e-7, None)
    assert llama.to_dict()["versions"] == {"transformers": "5.24.0"}
    assert families["gpt2"].cells == ()


def test_every_measured_model_type_is_supported() -> None:
    measured = json.loads(resources.files("mobius_hf").joinpath(verified.FILE).read_text("utf-8"))
    assert measured["models"].keys() <= set(supported_model_types())
