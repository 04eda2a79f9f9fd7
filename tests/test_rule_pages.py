"""The pages of docs/rules are those that the rules' own modules give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "rule_pages.py"


def test_pages_are_up_to_date():
    # In a process of its own: other tests register execution providers in this one.
    command = [sys.executable, str(SCRIPT), "--check"]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_pages_name_the_targets():
    pages = SCRIPT.parents[1] / "docs" / "rules"
    attention = (pages / "lowering_attention.md").read_text("utf-8")
    assert "webgpu (f32, f16)" in attention
    assert "cuda" not in attention.partition("## Use")[2].partition("##")[0]
    assert "cpu (f32); cuda (f16, bf16)" in (pages / "fusion_pack_qkv.md").read_text("utf-8")
