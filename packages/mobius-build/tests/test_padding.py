"""C002: the side on which rows are padded reaches the graph, the report and the manifest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

import mobius
from mobius.package import ModelPackage
from mobius.padding import PaddingSide, UnknownPaddingSideError, parse_padding_side
from mobius_ir_rules.testing import op_counts

GQA = "com.microsoft::GroupQueryAttention"
Make = Callable[..., ModelPackage]


def test_sides() -> None:
    assert parse_padding_side("left") is PaddingSide.LEFT
    with pytest.raises(UnknownPaddingSideError, match=r"'middle'. Supported: \['left', 'right'\]"):
        parse_padding_side("middle")


@pytest.mark.parametrize("side", ["left", "right"])
def test_fused_attention_is_made_for_the_side(decoder: Make, tmp_path: Path, side: str) -> None:
    package = decoder(execution_provider="cpu", dtype="f32", padding_side=side)
    counts = op_counts(package["model"])
    assert (counts[GQA], counts["Attention"]) == (2, 0)
    assert counts["RotaryEmbedding"] == (4 if side == "left" else 0)
    # One bias for all layers.
    biases = {
        node.inputs[10]
        for node in package["model"].graph
        if node.op_type == "GroupQueryAttention" and len(node.inputs) > 10
    }
    assert len(biases) == (1 if side == "left" else 0)
    package.save(tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "mobius.json").read_text())
    assert manifest["padding"] == ("any" if side == "left" else "right")


@pytest.mark.parametrize("ep", ["cuda", "trt-rtx", "dml"])
def test_attention_stays_where_the_kernel_takes_no_bias(decoder: Make, ep: str) -> None:
    """Nothing else was to be expected, so it is in the report, and nobody is warned."""
    package = decoder(execution_provider=ep, dtype="f16", padding_side="left", weights=False)
    assert op_counts(package["model"])[GQA] == 0
    (stage,) = (stage for stage in package.reports["model"].stages if stage.name == "GQAFusion")
    assert len(stage.refusals) == 2
    for refusal in stage.refusals:
        assert "would need attention_bias" in refusal.reason
        assert "padded on the left" in refusal.reason
    assert not package.reports["model"].warnings


def test_a_kernel_that_reads_no_lengths_gets_the_mask(decoder: Make, tmp_path: Path) -> None:
    """MLX's takes every row to be full: what it is told must be right for any padding."""
    package = decoder(execution_provider="mlx", dtype="f32")
    assert op_counts(package["model"])[GQA] == 2
    made = {node.op_type for node in package["model"].graph}
    assert "ReduceSum" not in made  # of the mask: nothing counts the tokens of a row
    package.save(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "mobius.json").read_text())["padding"] == "any"
    neither = mobius.EpCapabilities(
        name="neither",
        gqa_dtypes={ir.DataType.FLOAT},
        lacks=[
            mobius.Lack("GroupQueryAttention", "com.microsoft", attribute=attribute)
            for attribute in ("attention_bias", "seqlens_k")
        ],
    )
    package = decoder(execution_provider=neither, dtype="f32", weights=False)
    assert op_counts(package["model"])[GQA] == 0
    refusals = package.reports["model"].refusals
    assert len([each for each in refusals if "does not read the lengths" in each.reason]) == 2
    assert not package.reports["model"].warnings


def test_options(decoder: Make, run: Any, tmp_path: Path) -> None:
    with pytest.raises(UnknownPaddingSideError):
        decoder(padding_side="both")
    with pytest.raises(UnknownPaddingSideError):
        mobius.build("no/such", padding_side="both", offline=True)
    result = run("build", tmp_path, tmp_path / "out", "--padding-side", "both")
    assert result.exit_code == 1
    assert "padding_side 'both'" in result.output
