"""What the pages take from code and measurements is what code and measurements give."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.blocks import ROOT

from mobius_eps.builtin import BUILTIN_EPS

SCRIPT = ROOT / "scripts" / "pages.py"
DOCS = ROOT / "docs"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test import what the script imports."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))


def test_pages_are_up_to_date():
    # In a process of its own: other tests register execution providers in this one.
    command = [sys.executable, str(SCRIPT), "--check"]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_pages_of_rules_name_the_targets():
    attention = (DOCS / "rules" / "lowering_attention.md").read_text("utf-8")
    assert "webgpu (f32, f16)" in attention
    assert "cuda" not in attention.partition("## Use")[2].partition("##")[0]
    packed = (DOCS / "rules" / "fusion_pack_qkv.md").read_text("utf-8")
    assert "cpu (f32); cuda (f16, bf16)" in packed
    matmul = (DOCS / "rules" / "fusion_fused_mat_mul.md").read_text("utf-8")
    assert "cpu (f32); cuda (f32, f16, bf16)" in matmul


def test_every_execution_provider_has_a_page():
    pages = {path.stem for path in (DOCS / "eps").glob("*.md")}
    assert pages == {each.name for each in BUILTIN_EPS}
    assert all(
        f"<!-- generated: ep {name} -->" in (DOCS / "eps" / f"{name}.md").read_text("utf-8")
        for name in pages
    )


def test_pages_of_execution_providers_say_what_is_built():
    dml = (DOCS / "eps" / "dml.md").read_text("utf-8")
    assert re.search(r"\| f16 \| .*1 `GroupQueryAttention`", dml)
    assert "`GroupQueryAttention`: right" in dml
    assert "| 3 | LowerOpset | the newest opset that the EP runs | x | x |" in dml
    strict = (DOCS / "eps" / "onnx-standard.md").read_text("utf-8")
    assert "GroupQueryAttention" not in strict.partition("generated: ep")[2]


@pytest.mark.usefixtures("scripts")
def test_only_what_is_between_the_comments_is_written(monkeypatch: pytest.MonkeyPatch):
    import pages

    monkeypatch.setattr(pages, "SECTIONS", {"one": lambda: "1", "of": lambda name: f"<{name}>"})
    before = (
        "# A\n\n<!-- generated: one -->\nold\n<!-- end of generated -->\nkept\n"
        "<!-- generated: of a-b -->\n<!-- end of generated -->\n"
    )
    after = (
        "# A\n\n<!-- generated: one -->\n\n1\n\n<!-- end of generated -->\nkept\n"
        "<!-- generated: of a-b -->\n\n<a-b>\n\n<!-- end of generated -->\n"
    )
    assert pages.filled(before) == after
    assert pages.filled(after) == after


@pytest.mark.usefixtures("scripts")
def test_measurements_become_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    import data_sections

    content = {
        "date": "2025-01-02",
        "machine": {"cpu": "X", "cores": 2},
        "1 GB": {"bytes": 1000000, "cases": {"own dtype": {"seconds": 1.23456, "note": None}}},
        "rows": [{"a": 1, "b": [0.5, 2]}],
        "peers": ["x", "y"],
    }
    (tmp_path / "save_time.json").write_text(json.dumps(content), "utf-8")
    monkeypatch.setattr(data_sections, "RESULTS", tmp_path)
    assert data_sections.benchmarks().split("\n\n") == [
        "## Save time",
        "date 2025-01-02",
        "machine: cpu X, cores 2",
        "### 1 GB",
        "bytes 1,000,000",
        "| cases | seconds | note |\n| --- | --- | --- |\n| own dtype | 1.235 |   |",
        "| a | b |\n| --- | --- |\n| 1 | 0.5, 2 |",
        "peers: x, y",
    ]


@pytest.mark.usefixtures("scripts")
def test_verified_models_become_a_table(monkeypatch: pytest.MonkeyPatch):
    import data_sections

    from mobius.families import Cell, Family

    cells = (
        Cell(layout="one", ep="cpu", dtype="f32", scenario="s", max_abs=1e-5, max_rel=2e-6),
        Cell(layout="one", ep="cpu", dtype="f16", scenario="s", max_abs=1e-2, max_rel=2e-3),
        Cell(layout="one", ep="mlx", dtype="f16", scenario="s", refused="no kernel"),
    )
    one = Family(
        model_type="one", source="z", features=("window",), cells=cells, versions=(("ort", "1"),)
    )
    families = (one, Family(model_type="two", source="z"))
    monkeypatch.setattr(data_sections, "known_families", lambda: families)
    summary, table, refused, reasons = data_sections.models().split("\n\n")
    assert summary == "1 model types, 3 builds that were run or refused, with ort 1."
    assert table.splitlines()[0] == (
        "| model_type | cpu | largest, f32 | largest, f16 | features |"
    )
    assert table.splitlines()[2:] == ["| `one` | f32, f16 | 2.0e-06 | 2.0e-03 | window |"]
    assert refused == "Refused, with the reason:"
    assert reasons.splitlines()[-1] == "| no kernel | one for mlx f16 (s) |"


def test_names_that_can_be_imported_are_in_the_reference():
    import mobius
    import mobius_components
    import mobius_eps
    import mobius_ir_rules

    whole = {
        "mobius_eps": mobius_eps,
        "mobius_components": mobius_components,
        "mobius_ir_rules": mobius_ir_rules,
    }
    pages = {path.stem: path.read_text("utf-8") for path in (DOCS / "reference").glob("*.md")}
    for name in whole:
        assert f".. automodule:: {name}\n   :members:" in pages[name]
    elsewhere = {each for module in whole.values() for each in module.__all__}
    for name in sorted(set(mobius.__all__) - elsewhere - {"__version__"}):
        assert re.search(rf"mobius\.(\w+\.)*{name}\b", pages["mobius"]), name
