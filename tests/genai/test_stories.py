"""onnxruntime-genai reads the bundled model's tokenizer and tells transformers' story in words."""

from __future__ import annotations

import json
from pathlib import Path

import onnxruntime_genai as og
import pytest
import torch
import transformers

import mobius

CHECKPOINT = Path(__file__).parents[2] / "examples" / "stories" / "checkpoint"
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def story():
    tokenizer = transformers.AutoTokenizer.from_pretrained(CHECKPOINT)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        CHECKPOINT, attn_implementation="eager", dtype=torch.float32
    )
    tokens = model.generate(**tokenizer(PROMPT, return_tensors="pt"), do_sample=False)[0]
    assert tokens[-1] == tokenizer.eos_token_id
    return tokenizer.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("ep", ["cpu", "default", "onnx-standard"])
@pytest.mark.parametrize("last_token_logits", [False, True])
def test_tells_the_same_story(story, tmp_path, ep, last_token_logits):
    package = mobius.build(
        CHECKPOINT, execution_provider=ep, dtype="f32", last_token_logits=last_token_logits
    )
    package.save(tmp_path / "package")
    model = og.Model(str(tmp_path / "package"))
    tokenizer = og.Tokenizer(model)
    tokenizer.update_options(add_special_tokens="true")
    generator = og.Generator(model, og.GeneratorParams(model))  # with the package's own defaults
    generator.append_tokens(tokenizer.encode(PROMPT))
    stream = tokenizer.create_stream()
    told = [PROMPT]
    while not generator.is_done():
        generator.generate_next_token()
        told.append(stream.decode(generator.get_next_tokens()[0]))
    assert "".join(told).removesuffix("</s>") == story


def test_the_directory_is_complete(tmp_path):
    """Every file of the checkpoint's tokenizer is there, byte for byte."""
    mobius.build(CHECKPOINT, execution_provider="cpu").save(tmp_path / "package")
    names = {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    written = {path.name for path in (tmp_path / "package").iterdir()}
    assert written == {
        *names,
        "genai_config.json",
        "mobius.json",
        "model.onnx",
        "model.onnx.data",
    }
    for name in names:
        assert (tmp_path / "package" / name).read_bytes() == (CHECKPOINT / name).read_bytes()
    manifest = json.loads((tmp_path / "package" / "mobius.json").read_text())
    assert manifest["files"] == sorted({*names, "genai_config.json"})
    assert manifest["generation"]["genai_refusal"] is None
