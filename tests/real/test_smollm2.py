"""SmolLM2-135M-Instruct says on ONNX Runtime, token for token, what it says in transformers.

`nox -s real` makes the checkpoint. MOBIUS_REAL_CHECKPOINT names another folder for it.
"""

from __future__ import annotations

import filecmp
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from tests.parity.decoder import Decoder

import mobius

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = ROOT / ".nox" / ".cache" / "SmolLM2-135M-Instruct"
CHECKPOINT = Path(os.environ.get("MOBIUS_REAL_CHECKPOINT") or DEFAULT)

QUESTION = "Why is the sky blue? Explain it to a ten-year-old."
STORY = "Once upon a time"
# ", the city of Nova Haven was a thriving metropolis, ...": how these weights continue STORY.
KNOWN = [28, 260, 2240, 282, 23324, 27108, 436, 253, 15114, 39228]
KNOWN += [28, 351, 25854, 41658, 284, 14055, 9018, 30, 1249, 347]
LIMIT = 64
TOLERANCE = 1e-3  # of logits that reach 36; it is below the smallest margin of the prompts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not CHECKPOINT.is_dir(),
        reason=f"no checkpoint in {CHECKPOINT}: `nox -s real` makes it, MOBIUS_REAL_CHECKPOINT "
        "names another folder",
    ),
]


class Told(NamedTuple):
    """A prompt `[S]`, the `LIMIT` tokens after it, and the logits `[LIMIT, vocab]` they are of."""

    prompt: list[int]
    tokens: list[int]
    logits: npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(CHECKPOINT)


@pytest.fixture(scope="module")
def expected(tokenizer):
    """What transformers makes of each prompt, greedily."""
    question = [{"role": "user", "content": QUESTION}]
    prompts = {
        "question": tokenizer.apply_chat_template(question, add_generation_prompt=True)[
            "input_ids"
        ],
        "story": tokenizer(STORY)["input_ids"],
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        CHECKPOINT, attn_implementation="eager", dtype=torch.float32
    ).eval()
    told = {name: continued(model, prompt) for name, prompt in prompts.items()}
    torch.set_num_threads(threads)
    return told


def continued(model: transformers.PreTrainedModel, prompt: list[int]) -> Told:
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=LIMIT,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return Told(
        prompt, output.sequences[0, len(prompt) :].tolist(), torch.cat(output.logits).numpy()
    )


def spoken(decoder: Decoder, prompt: list[int]) -> Told:
    """Return what the built model makes of `prompt`, greedily."""
    decoder.start(batch=1)
    tokens, logits, feed = [], [], prompt
    for _ in range(LIMIT):
        column = np.array([feed], np.int64)
        logits.append(decoder.step(column, np.ones_like(column))[0, -1])
        feed = [int(logits[-1].argmax())]
        tokens += feed
    return Told(prompt, tokens, np.stack(logits))


@pytest.mark.parametrize("ep", ["default", "cpu", "onnx-standard"])
def test_says_the_same(expected, tmp_path, ep, record_property):
    mobius.build(CHECKPOINT, execution_provider=ep, dtype="f32").save(tmp_path / "package")
    decoder = Decoder(tmp_path / "package" / "model.onnx")
    for name, theirs in expected.items():
        ours = spoken(decoder, theirs.prompt)
        difference = float(np.abs(ours.logits - theirs.logits).max())
        second, first = np.sort(theirs.logits)[:, -2:].T
        record_property(f"{name}: largest logit difference", f"{difference:.1e}")
        record_property(f"{name}: smallest margin", f"{(first - second).min():.1e}")
        assert ours.tokens == theirs.tokens
        assert difference < TOLERANCE


@pytest.mark.parametrize("ep", ["default", "cpu"])
def test_the_gguf_file_gives_the_same_package(tokenizer, tmp_path, ep):
    """Its Q4_1 and Q8_0 blocks are the numbers that the safetensors file has in float32."""
    folder = CHECKPOINT / "gguf"
    assert folder.is_dir(), f"{CHECKPOINT} is of an older version: remove it and run `nox -s real`"
    for name, source in {"gguf": folder, "safetensors": CHECKPOINT}.items():
        mobius.build(source, execution_provider=ep, dtype="f32").save(tmp_path / name)
    for file in ("model.onnx", "model.onnx.data"):
        assert filecmp.cmp(tmp_path / "gguf" / file, tmp_path / "safetensors" / file, shallow=False)
    ours = transformers.AutoTokenizer.from_pretrained(tmp_path / "gguf")
    message = [{"role": "user", "content": QUESTION}]
    assert ours.apply_chat_template(message) == tokenizer.apply_chat_template(message)
    for text in (STORY, QUESTION, "  It's 3.14159, naïve 東京 🙂\n\n\tdef f(x):", "<|im_end|>\n"):
        assert ours(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert ours.decode(ours(text)["input_ids"]) == text


def test_transformers_says_what_is_known(expected):
    """The checkpoint is the trained model: no part of it was lost on its way here."""
    assert expected["story"].tokens[: len(KNOWN)] == KNOWN


def test_the_answer_is_one(expected, tokenizer):
    """The chat template arrived: the model answers, in words of its subject, past the limit."""
    told = expected["question"]
    assert len(told.tokens) == LIMIT
    assert tokenizer.eos_token_id not in told.tokens
    text = tokenizer.decode(told.tokens)
    assert "light" in text
    assert text.isascii()
