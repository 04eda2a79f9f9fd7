"""`genai_config.json` of checkpoint folders, by `mobius.build` and by the command (C007, C079)."""

from __future__ import annotations

import json

import pytest
from tests.parity.reference import make_model
from typer.testing import CliRunner

import mobius
from mobius.cli import app
from mobius_ir_rules.testing import op_counts


def write(folder, model_type: str, generation: dict | None, **config: object) -> None:
    """Save a tiny model whose two configuration files name different tokens."""
    make_model(model_type).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    path = folder / "generation_config.json"
    path.unlink(missing_ok=True)
    if generation is not None:
        path.write_text(json.dumps(generation))


@pytest.mark.parametrize(
    ("generation", "eos", "pad"),
    [
        ({"eos_token_id": [1, 106]}, [1, 106], 1),
        ({"eos_token_id": [1, 106], "pad_token_id": [7, 8]}, [1, 106], 7),
        (None, [1], 1),
    ],
)
def test_c007_every_token_that_ends_a_text_and_one_pad(tmp_path, generation, eos, pad):
    write(tmp_path / "in", "llama", generation, eos_token_id=1, pad_token_id=None)
    mobius.build(tmp_path / "in", execution_provider="cpu").save(tmp_path / "built")
    arguments = ["build", str(tmp_path / "in"), str(tmp_path / "command"), "--ep", "cpu"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    for name in ("built", "command"):
        model = json.loads((tmp_path / name / "genai_config.json").read_text())["model"]
        assert (model["type"], model["eos_token_id"], model["pad_token_id"]) == ("llama", eos, pad)


def test_c079_long_rope_has_no_branch_and_is_captured(tmp_path):
    write(tmp_path / "in", "phi3", {"eos_token_id": 1})
    package = mobius.build(tmp_path / "in", execution_provider="trt-rtx", dtype="f16")
    package.save(tmp_path / "out")
    assert "If" not in op_counts(package["model"])
    config = json.loads((tmp_path / "out" / "genai_config.json").read_text())
    decoder = config["model"]["decoder"]
    assert decoder["session_options"]["provider_options"] == [
        {"NvTensorRtRtx": {"enable_cuda_graph": "1"}}
    ]
    assert config["model"]["context_length"] == 128
    assert set(decoder["inputs"]) == {
        *(value.name for value in package["model"].graph.inputs[:3]),
        "past_key_names",
        "past_value_names",
    }
