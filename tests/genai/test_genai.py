"""onnxruntime-genai says, from each package's directory, what transformers says.

Prompts are longer than any window. Cases C051, C143.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.genai.texts import EOS, PAD, Text, assert_said, expected, set_special_tokens
from tests.parity.reference import make_model

import mobius
from mobius.generate import generate
from mobius.text_decoder import TextDecoder

# Fields that the families differ in from `CONFIGS`: LongRoPE's tables change in the middle of a
# text, where onnxruntime-genai computes the cache again only if that is at 4,096 tokens.
FAMILIES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {},
    "gemma3_text": {},
    "phi3": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75}},
}
NEW = 12


def families(*eps: str) -> list:
    return [pytest.param(family, ep, id=f"{family}-{ep}") for family in FAMILIES for ep in eps]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    made = {}

    def get(family):
        if family not in made:
            model = make_model(family, **FAMILIES[family])
            set_special_tokens(model)
            folder = tmp_path_factory.mktemp(family)
            model.save_pretrained(folder)
            made[family] = (model, folder)
        return made[family]

    return get


@pytest.fixture(scope="module")
def packages(checkpoints, tmp_path_factory):
    made = {}

    def get(family, ep, dtype="f32", last_token_logits=False, quantize=None):
        key = (family, ep, dtype, last_token_logits, quantize)
        if key not in made:
            _, folder = checkpoints(family)
            out = tmp_path_factory.mktemp("package") / "out"
            package = mobius.build(
                *(folder,),
                execution_provider=ep,
                dtype=dtype,
                last_token_logits=last_token_logits,
                quantize=quantize,
            )
            package.save(out)
            made[key] = out
        return made[key]

    return get


def prompts(*lengths: int, seed: int = 3) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(110, 211, size=length).tolist() for length in lengths]


def search(folder: Path) -> dict:
    return json.loads((folder / "genai_config.json").read_text())["search"]


@pytest.mark.parametrize(("family", "ep"), families("cpu", "default"))
def test_one_text_and_a_batch(checkpoints, packages, family, ep):
    model, _ = checkpoints(family)
    package = packages(family, ep)
    assert search(package)["past_present_share_buffer"] is (ep == "cpu")
    rows = prompts(9, 13, 7)
    said = [expected(model, row, NEW) for row in rows]
    assert Text(package, 40).say(rows[:1], NEW) == said[:1]
    assert_said(Text(package, 40, batch=3).say(rows, NEW), said)


@pytest.mark.parametrize(("family", "ep"), families("cpu", "default"))
def test_two_turns_and_another_one_instead(checkpoints, packages, family, ep):
    model, _ = checkpoints(family)
    first, second, other = prompts(9, 6, 5)
    # The runtime has read all that it said only where the model has ended its turn by itself.
    said = expected(model, first, 6)
    end = next(index for index in range(3, 6) if said[index] not in said[:index])
    eos = [*EOS, said[end]]
    text = Text(packages(family, ep), 64, eos=eos)
    assert text.say([first], 6) == [said[:end]]
    so_far = [*first, *said[:end]]
    assert text.say([second], NEW) == [expected(model, [*so_far, *second], NEW, eos)]
    text.generator.rewind_to(len(so_far))
    assert text.say([other], NEW) == [expected(model, [*so_far, *other], NEW, eos)]


@pytest.mark.parametrize(("family", "ep"), families("cpu"))
def test_sharing_the_buffer_changes_nothing(packages, family, ep):
    """C143: one buffer for past and present, or two."""
    first, second = prompts(9, 6)
    said = []
    for share in (True, False):
        text = Text(packages(family, ep), 64, past_present_share_buffer=share)
        said.append(text.say([first], NEW))
        text.generator.rewind_to(len(first))
        said.append(text.say([second], NEW))
    assert said[:2] == said[2:]


def test_a_graph_for_left_padding_takes_right_padding_too(checkpoints, tmp_path):
    model, folder = checkpoints("mistral")
    package = mobius.build(folder, execution_provider="cpu", dtype="f32", padding_side="left")
    package.save(tmp_path / "out")
    assert search(tmp_path / "out")["past_present_share_buffer"] is True
    rows = prompts(9, 13, 7)
    said = [expected(model, row, NEW) for row in rows]
    assert_said(Text(tmp_path / "out", 40, batch=3).say(rows, NEW), said)


@pytest.mark.parametrize("quantize", ["int4", "int8"])
def test_quantized_weights(packages, quantize):
    """The runtime says what ONNX Runtime alone says."""
    package = packages("mistral", "cpu", last_token_logits=True, quantize=quantize)
    assert search(package)["past_present_share_buffer"] is True
    (row,) = prompts(11)
    said = list(generate(TextDecoder(package), row, max_new_tokens=NEW))
    assert said
    assert Text(package, 40).say([row], NEW) == [said]


@pytest.mark.parametrize("ep", ["cuda", "dml", "webgpu", "trt-rtx"])
def test_graphs_of_other_eps(checkpoints, packages, ep):
    """The runtime reads their options; the arithmetic, in float16, runs on the CPU."""
    model, _ = checkpoints("llama")
    package = packages("llama", ep, "f16")
    assert search(package)["past_present_share_buffer"] is True
    (row,) = prompts(11)
    said = expected(model, row, 6)
    (ours,) = Text(package, 40).say([row], 6)
    assert ours[:3] == said[:3]
    assert len(ours) == len(said)


@pytest.mark.parametrize(("family", "ep"), families("cpu", "default"))
def test_logits_of_the_last_token_are_all_that_is_needed(checkpoints, packages, family, ep):
    """The runtime takes `[batch, 1, vocab]`, in one text, in a batch and in later turns.

    With all logits, it looks for the last one that is not of padding, even where there is none.
    """
    model, _ = checkpoints(family)
    package = packages(family, ep, last_token_logits=True)
    rows = prompts(9, 13, 7)
    rows[0][-1] = PAD
    said = [expected(model, row, NEW) for row in rows]
    text = Text(package, 64)
    assert text.say(rows[:1], NEW) == said[:1]
    text.generator.rewind_to(len(rows[0]))
    assert text.say(rows[1:2], NEW) == [expected(model, rows[0] + rows[1], NEW)]
    rows, said = rows[1:], said[1:]
    assert_said(Text(package, 40, batch=2).say(rows, NEW), said)
