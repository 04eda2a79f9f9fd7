"""The bundled model tells, from each saved package, the story that transformers tells."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
import transformers

import mobius

STORIES = Path(__file__).parents[1] / "examples" / "stories"
PROMPTS = ("Once upon a time", "One day")
LIMIT = 200


def load_script(name: str):
    spec = importlib.util.spec_from_file_location(f"stories_{name}", STORIES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference():
    """Transformers' greedy continuation of each prompt."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(STORIES / "checkpoint")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        STORIES / "checkpoint", attn_implementation="eager", dtype=torch.float32
    ).eval()
    stories = {}
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt")
        with torch.no_grad():
            told = model.generate(**ids, do_sample=False, max_new_tokens=LIMIT)
        stories[prompt] = told[0].tolist()
    return tokenizer, stories


@pytest.mark.parametrize("ep", ["cpu", "default", "onnx-standard"])
def test_tells_the_same_story(reference, tmp_path, ep):
    run = load_script("run")
    tokenizer, stories = reference
    mobius.build(STORIES / "checkpoint", execution_provider=ep).save(tmp_path / "package")
    session = run.ort.InferenceSession(
        tmp_path / "package" / "model.onnx", providers=["CPUExecutionProvider"]
    )
    for prompt, expected in stories.items():
        ids = tokenizer(prompt)["input_ids"]
        ours = list(ids)
        for token in run.greedy(session, ids, LIMIT):
            ours.append(token)
            if token == tokenizer.eos_token_id:
                break
        assert ours == expected


def test_the_story_is_english(reference):
    """It is told to the end, in sentences."""
    tokenizer, stories = reference
    for prompt, tokens in stories.items():
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        assert tokens[-1] == tokenizer.eos_token_id
        assert text.startswith(prompt)
        assert text.endswith(".")
        assert len(text.split()) > 40
