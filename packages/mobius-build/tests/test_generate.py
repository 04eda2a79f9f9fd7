"""`TextDecoder` and `generate`: the same tokens as without a cache, however the cache is kept."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import mobius
from mobius.errors import PackageLoadError
from mobius.generate import Speed, generate
from mobius.generation import GenerationSettings
from mobius.package import ModelPackage
from mobius.sampling import Sampler
from mobius.text_decoder import RunError, TextDecoder
from mobius_components import ArchitectureConfig
from mobius_components.models import CausalLMModel

MakeDecoder = Callable[..., ModelPackage]
PROMPT = [3, 9, 41, 7, 22]


def saved(package: ModelPackage, folder: Path, eos: Sequence[int] = ()) -> Path:
    settings = GenerationSettings(eos=tuple(eos))
    package.with_source(name="org/name", revision="0", generation=settings).save(folder)
    return folder


def without_cache(folder: Path, prompt: Sequence[int], count: int) -> list[int]:
    """Return the likeliest tokens after `prompt`, each from the whole text so far."""
    session = onnxruntime.InferenceSession(
        folder / "model.onnx", providers=["CPUExecutionProvider"]
    )
    text = list(prompt)
    for _ in range(count):
        feed = {
            "input_ids": np.array([text], np.int64),
            "attention_mask": np.ones((1, len(text)), np.int64),
            "position_ids": np.arange(len(text), dtype=np.int64)[None],
        }
        feed |= {
            port.name: np.zeros((1, port.shape[1], 0, port.shape[3]), np.float32)
            for port in session.get_inputs()
            if port.name.startswith("past_")
        }
        (logits,) = session.run(["logits"], feed)
        text.append(int(logits[0, -1].argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("last_token_logits", [False, True])
@pytest.mark.parametrize(("ep", "shared"), [("cpu", True), ("default", False), ("webgpu", True)])
def test_the_cache_changes_nothing(
    decoder: MakeDecoder, tmp_path: Path, ep: str, shared: bool, last_token_logits: bool
) -> None:
    package = decoder(execution_provider=ep, dtype="f32", last_token_logits=last_token_logits)
    folder = saved(package, tmp_path / "out")
    text = TextDecoder(folder, providers=["CPUExecutionProvider"])
    assert text.generation.shared_cache is shared
    speed = Speed()
    made = list(generate(text, PROMPT, max_new_tokens=12, speed=speed))
    assert made == without_cache(folder, PROMPT, 12)
    assert len(set(made)) > 3
    assert (speed.prefill_tokens, speed.decode_tokens) == (5, 11)
    assert speed.prefill > 0
    assert speed.decode > 0
    # Another text in the same decoder.
    assert list(generate(text, [5], max_new_tokens=6)) == without_cache(folder, [5], 6)


def test_another_provider_than_the_package_is_for_is_told(
    decoder: MakeDecoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = saved(decoder(execution_provider="webgpu", dtype="f32"), tmp_path / "out")
    assert TextDecoder(folder).providers == ("CPUExecutionProvider",)
    assert caplog.messages == [
        "The package is for WebGpuExecutionProvider, which this ONNX Runtime lacks; it runs on "
        "CPUExecutionProvider."
    ]
    caplog.clear()
    TextDecoder(folder, providers=["CPUExecutionProvider"])
    assert caplog.messages == []


def test_logits_of_a_prompt_in_parts(decoder: MakeDecoder, tmp_path: Path) -> None:
    text = TextDecoder(saved(decoder(execution_provider="cpu"), tmp_path / "out"))
    whole = text.read(PROMPT)
    text.start()
    text.read(PROMPT[:3])
    parts = text.read(PROMPT[3:])
    assert whole.shape == (64,)
    assert np.abs(whole - parts).max() < 1e-5
    assert text.length == 5


def test_a_token_ends_the_text(decoder: MakeDecoder, tmp_path: Path) -> None:
    package = decoder(execution_provider="cpu")
    made = without_cache(saved(package, tmp_path / "endless"), PROMPT, 8)
    end = next(token for token in made[3:] if token not in made[:3])
    never = next(token for token in range(64) if token not in made)
    folder = saved(package, tmp_path / "out", eos=[never, end])
    assert list(generate(TextDecoder(folder), PROMPT, max_new_tokens=8)) == made[: made.index(end)]


def test_a_text_ends_where_the_model_does(decoder: MakeDecoder, tmp_path: Path) -> None:
    folder = saved(decoder(execution_provider="cpu"), tmp_path / "out")
    text = TextDecoder(folder)
    prompt = [(7 * index) % 60 for index in range(58)]
    assert list(generate(text, prompt, max_new_tokens=100)) == without_cache(folder, prompt, 6)
    assert list(generate(text, [*prompt, *[1] * 6], max_new_tokens=5)) == []
    for wrong in ([], [1] * 65):
        with pytest.raises(RunError, match=rf"has {len(wrong)} tokens; the model reads 1 to 64"):
            next(generate(text, wrong, max_new_tokens=1))
    with pytest.raises(RunError, match="A text of 65 tokens does not fit: the model reads 64"):
        text.start(65)
    text.start(4)
    with pytest.raises(RunError, match="5 tokens do not fit after 0 of at most 4"):
        text.read(PROMPT)


def test_a_seed_decides(decoder: MakeDecoder, tmp_path: Path) -> None:
    text = TextDecoder(saved(decoder(execution_provider="cpu"), tmp_path / "out"))
    texts = [
        list(generate(text, PROMPT, max_new_tokens=10, sampler=Sampler(sample=True, seed=seed)))
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_float16_and_bfloat16_caches(decoder: MakeDecoder, tmp_path: Path) -> None:
    half = saved(decoder(execution_provider="cuda", dtype="f16"), tmp_path / "half")
    text = TextDecoder(half, providers=["CPUExecutionProvider"])
    assert len(list(generate(text, PROMPT, max_new_tokens=4))) == 4
    cache = TextDecoder.make_cache((1, 2, 3, 4), ir.DataType.BFLOAT16, "cpu")
    assert cache.data_type() == "tensor(bfloat16)"
    assert cache.tensor_size_in_bytes() == 24 * np.dtype(ml_dtypes.bfloat16).itemsize


LONG_ROPE = ArchitectureConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    head_dim=16,
    max_position_embeddings=32,
    rope_scaling={
        "rope_type": "longrope",
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 8,
    },
)


@pytest.mark.parametrize("ep", ["cpu", "default"])
def test_long_rope_reads_a_text_again_where_its_angles_change(
    tensors_for: Callable[..., Any], tmp_path: Path, ep: str
) -> None:
    package = mobius.build_from_module(
        CausalLMModel(LONG_ROPE), LONG_ROPE, execution_provider=ep, dtype="f32"
    )
    package.apply_weights(
        {
            name: ir.tensor(tensor.numpy() * np.float32(0.3) + np.float32("norm" in name))
            for name, tensor in tensors_for(package).items()
        }
    )
    folder = saved(package, tmp_path / "out")
    text = TextDecoder(folder)
    speed = Speed()
    made = list(generate(text, PROMPT, max_new_tokens=12, speed=speed))
    assert made == without_cache(folder, PROMPT, 12)
    assert (speed.prefill_tokens, speed.decode_tokens) == (5 + 9, 10)
    # With the cache of the short angles, the text would have been another one.
    text.generation = dataclasses.replace(text.generation, recompute_length=None)
    assert list(generate(text, PROMPT, max_new_tokens=12)) != made


def test_packages_that_cannot_be_run(
    decoder: MakeDecoder, make_package: Callable[..., ModelPackage], tmp_path: Path
) -> None:
    make_package().save(tmp_path / "no-decoder")
    with pytest.raises(RunError, match="not a package with one text decoder"):
        TextDecoder(tmp_path / "no-decoder")
    with pytest.raises(RunError, match="was saved without weights"):
        TextDecoder(saved(decoder(weights=False), tmp_path / "no-weights"))
    with pytest.raises(PackageLoadError, match=r"mobius\.json is missing"):
        TextDecoder(tmp_path)
    package = decoder(execution_provider="cpu")
    pixels = ir.Value(name="pixels", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))
    package["model"].graph.inputs.append(pixels)
    with pytest.raises(RunError, match=r"model\.onnx takes pixels too"):
        TextDecoder(saved(package, tmp_path / "more-inputs"))


def test_a_provider_that_is_not_here_leaves_the_cpu(decoder: MakeDecoder, tmp_path: Path) -> None:
    """Unless it is asked for by name; an EP that is registered elsewhere runs on the CPU."""
    folder = saved(decoder(execution_provider="cuda", dtype="f16"), tmp_path / "out")
    assert TextDecoder(folder).providers == ("CPUExecutionProvider",)
    with pytest.raises(RuntimeError, match="This ONNX Runtime has no"):
        TextDecoder(folder, providers=["CUDAExecutionProvider"])
    path = folder / "mobius.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"execution_provider": "elsewhere"}))
    assert TextDecoder(folder).providers == ("CPUExecutionProvider",)
