"""SmolLM2 in onnxruntime-genai and in `mobius run`: chat template, words and a second turn."""

from __future__ import annotations

import json

import onnxruntime_genai as og
import pytest
import torch
import transformers
from tests.real.test_smollm2 import CHECKPOINT, QUESTION, pytestmark  # noqa: F401
from typer.testing import CliRunner

import mobius
from mobius.cli import app

SECOND = "And why is it red in the evening?"
LIMIT = 48


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(CHECKPOINT)


@pytest.fixture(scope="module")
def answers(tokenizer):
    """What transformers answers to one question, and to a second one after it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        CHECKPOINT, attn_implementation="eager", dtype=torch.float32
    )
    messages, said = [], []
    for question in (QUESTION, SECOND):
        messages.append({"role": "user", "content": question})
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt"
        )["input_ids"]
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=LIMIT,
        )
        said.append(output[0, prompt.shape[1] :].tolist())
        messages.append({"role": "assistant", "content": tokenizer.decode(said[-1])})
    return said


@pytest.fixture(scope="module", params=["cpu", "default"])
def package(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("smollm2") / "package"
    built = mobius.build(
        CHECKPOINT, execution_provider=request.param, dtype="f32", last_token_logits=True
    )
    built.save(folder)
    return folder


def test_genai_answers_the_same(package, answers, tokenizer):
    model = og.Model(str(package))
    genai_tokenizer = og.Tokenizer(model)
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(do_sample=False, max_length=512)
    generator = og.Generator(model, parameters)
    messages = []
    for question, answer in zip((QUESTION, SECOND), answers, strict=True):
        messages.append({"role": "user", "content": question})
        prompt = genai_tokenizer.apply_chat_template(
            json.dumps(messages), add_generation_prompt=True
        )
        theirs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert prompt == theirs
        # The whole conversation again, from the first token that is new.
        tokens = genai_tokenizer.encode(prompt)
        known = generator.get_sequence(0).tolist() if messages[1:] else []
        same = next(
            (
                index
                for index, pair in enumerate(zip(known, tokens, strict=False))
                if pair[0] != pair[1]
            ),
            min(len(known), len(tokens)),
        )
        # The last token has not been read, and a growing cache goes back by one at least.
        same = min(same, max(len(known) - 2, 0))
        if known:
            generator.rewind_to(same)
        generator.append_tokens(tokens[same:])
        said = []
        while len(said) < LIMIT and not generator.is_done():
            generator.generate_next_token()
            said.append(int(generator.get_next_tokens()[0]))
        assert said == answer
        messages.append({"role": "assistant", "content": tokenizer.decode(said)})


def test_run_answers_the_same(package, answers, tokenizer):
    arguments = ["run", str(package), QUESTION, "--chat", "-n", str(LIMIT)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout == tokenizer.decode(answers[0], skip_special_tokens=True) + "\n"
    assert "decode 47 tokens at" in result.stderr
