"""Every family generates what transformers does: by `generate`, and in onnxruntime-genai.

Where the runtime has no cache for a family, the manifest says so. CI runs some families; the nox
session `genai` runs all. Cases C026 (heads that differ by layer), C051.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from tests.genai.texts import EOS, Text, Tie, assert_said, expected, set_special_tokens
from tests.parity.reference import CONFIGS, VARIANTS, make_model

import mobius
from mobius.generate import generate
from mobius.text_decoder import TextDecoder

FAMILIES = sorted({*CONFIGS, *VARIANTS})
# Heads that differ by layer; convolutions alone; states that do not grow; sinks; experts;
# two tables of positions; no positions at all.
IN_CI = {"gemma4_text", "lfm2", "qwen3_5_text", "gpt_oss", "phi3", "bloom", "mamba"}
REFUSED = {
    "falcon_mamba": "no cache of keys and values",
    "mamba": "no cache of keys and values",
    "mamba2": "no cache of keys and values",
    "minimax": "only for the same layers",
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "mistral4", "youtu"),
        "differ in shape",
    ),
}
# Both recompute a text of LongRoPE, at the length where its second table begins; for
# onnxruntime-genai that is always 4,096 tokens, and so these texts are longer from the start.
LENGTHS = (15, 18, 14)
NEW = 8


def texts(model) -> tuple[list[list[int]], list[list[int]]]:
    """Return prompts, and what transformers says after each: the first of several without a tie."""
    for seed in range(20):
        random = np.random.default_rng(seed)
        rows = [random.integers(110, 200, size=length).tolist() for length in LENGTHS]
        try:
            return rows, [expected(model, row, NEW) for row in rows]
        except Tie:
            continue
    raise AssertionError("ties in all of them")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Each family's package and texts, made once."""
    made = {}

    def get(family: str) -> tuple[Path, list, list]:
        if family not in made:
            model = make_model(family)
            set_special_tokens(model)
            folder = tmp_path_factory.mktemp(family)
            model.save_pretrained(folder / "in")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of attention that is not fused
                package = mobius.build(
                    folder / "in", execution_provider="cpu", dtype="f32", last_token_logits=True
                )
            package.save(folder / "out")
            made[family] = (folder / "out", *texts(model))
        return made[family]

    return get


families = pytest.mark.parametrize(
    "family",
    [pytest.param(each, marks=[] if each in IN_CI else [pytest.mark.slow]) for each in FAMILIES],
)


@families
def test_generate(built, family):
    folder, rows, said = built(family)
    decoder = TextDecoder(folder)
    assert tuple(decoder.generation.eos_token_ids) == EOS
    for row, theirs in zip(rows, said, strict=True):
        assert list(generate(decoder, row, max_new_tokens=NEW)) == theirs


@families
def test_genai(built, family):
    folder, rows, said = built(family)
    manifest = json.loads((folder / "mobius.json").read_text())
    refusal = manifest["generation"]["genai_refusal"]
    model_type = VARIANTS[family][0] if family in VARIANTS else family
    assert (refusal is not None) is (model_type in REFUSED)
    if refusal is not None:
        assert REFUSED[model_type] in refusal
        assert not (folder / "genai_config.json").exists()
        return
    assert_said(Text(folder, 40).say(rows[:1], NEW), said[:1])
    assert_said(Text(folder, 40, batch=3).say(rows, NEW), said)
