"""`open_reference`: a checkpoint that transformers runs, and what is said where it cannot."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import mobius
from mobius.quality import measure_quality, open_reference
from mobius.sources import SourceOptions
from mobius_hf.errors import ModelNotFoundError
from mobius_hf.reference import ReferenceModelError
from mobius_hf.source import source

OPTIONS = SourceOptions(offline=True)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a small llama that transformers has written, in bfloat16, with a tokenizer."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    words = sorted({"the", "a", "river", "was", "low", "mill", "[UNK]"})
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
    fast.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_package_agrees_with_its_checkpoint_and_a_rounded_one_less(
    checkpoint: Path, tmp_path: Path
) -> None:
    reference = open_reference(str(checkpoint), OPTIONS)
    assert reference.vocab_size == 40
    worst = []
    for quantize in (None, "int8", "int4"):
        package = mobius.build(
            checkpoint, execution_provider="cpu", dtype="f32", quantize=quantize, offline=True
        )
        package.save(tmp_path / f"{quantize}")
        quality = measure_quality(
            tmp_path / f"{quantize}", reference, text="the river was low " * 9
        )
        assert (quality.tokens, quality.random) == (36, False)
        worst.append(quality.relative)
        if quantize is None:
            assert quality.top1 == 1.0
            assert quality.perplexity == pytest.approx(quality.reference_perplexity, rel=1e-4)
    assert worst[0] < 1e-5 < worst[1] < worst[2] < 1.0


def test_without_a_tokenizer(checkpoint: Path) -> None:
    for file in checkpoint.glob("tokenizer*"):
        file.unlink()
    reference = source.open_reference(str(checkpoint), OPTIONS)
    assert reference.tokens("the river") is None
    logits = reference.logits([3, 4, 5])
    assert (logits.shape, logits.dtype) == ((3, 40), np.float32)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        source.open_reference(str(tmp_path / "nothing"), OPTIONS)


def test_what_transformers_does_not_load(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").write_bytes(b"\0" * 16)
    with pytest.raises(ReferenceModelError, match="transformers does not load"):
        source.open_reference(str(checkpoint), OPTIONS)


def test_without_torch_it_says_what_to_install(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec

    def without_torch(name: str, *more: Any) -> Any:
        return None if name == "torch" else find_spec(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", without_torch)
    with pytest.raises(ReferenceModelError, match="needs torch, which is not installed"):
        source.open_reference(str(checkpoint), OPTIONS)
