"""`last_token_logits`: the logits that all of them would have at each row's last real token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import mobius
from mobius.package import ModelPackage
from mobius.tasks import CausalLMTask
from mobius_components import ArchitectureConfig
from mobius_components.models import CausalLMModel

MakeDecoder = Callable[..., ModelPackage]
# Real tokens of each row, by call. A row without any in a call keeps what it had said.
RIGHT = [[[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]], [[1, 1], [1, 1], [1, 0]]]
LEFT = [[[1, 1, 1, 1, 1], [0, 0, 0, 1, 1], [0, 0, 1, 1, 1]], [[1, 1], [0, 1], [1, 1]]]
HOLES = [[[1, 0, 1, 1, 0], [0, 1, 0, 1, 0], [1, 1, 1, 0, 1]], [[0, 1], [1, 0], [1, 1]]]


def calls(package: ModelPackage, folder: Path, masks: list[Any]) -> list[np.ndarray[Any, Any]]:
    """Return the logits of each call."""
    package.save(folder)
    session = onnxruntime.InferenceSession(
        folder / "model.onnx", providers=["CPUExecutionProvider"]
    )
    names = [port.name for port in session.get_outputs()]
    cache = {
        port.name: np.zeros((3, port.shape[1], 0, port.shape[3]), np.float32)
        for port in session.get_inputs()
        if port.name.startswith("past_")
    }
    random, seen, logits = np.random.default_rng(0), np.zeros((3, 0), np.int64), []
    for mask in masks:
        tokens = random.integers(0, 64, np.shape(mask))
        seen = np.concatenate([seen, np.array(mask, np.int64)], axis=1)
        positions = np.clip(np.cumsum(seen, axis=1) - 1, 0, None)[:, -tokens.shape[1] :]
        feed = {"input_ids": tokens, "attention_mask": seen, "position_ids": positions, **cache}
        values = dict(zip(names, session.run(names, feed), strict=True))
        cache = {name: values[name.replace("past_key_values", "present")] for name in cache}
        logits.append(values["logits"])
    return logits


@pytest.mark.parametrize(
    ("ep", "masks"),
    [("default", RIGHT), ("default", LEFT), ("default", HOLES), ("onnx-standard", LEFT)],
)
def test_rows_padded_anywhere(
    decoder: MakeDecoder, tmp_path: Path, ep: str, masks: list[Any]
) -> None:
    """Prefill and a second call, each with its own padding."""
    options = {"execution_provider": ep, "dtype": "f32"}
    everything = calls(decoder(**options), tmp_path / "all", masks)
    last = calls(decoder(**options, last_token_logits=True), tmp_path / "last", masks)
    for mask, of_all, of_last in zip(masks, everything, last, strict=True):
        assert of_last.shape == (3, 1, 64)
        for row, real in enumerate(np.array(mask)):
            index = int(np.flatnonzero(real)[-1])
            assert np.abs(of_last[row, 0] - of_all[row, index]).max() < 1e-5


def test_group_query_attention_and_right_padding(decoder: MakeDecoder, tmp_path: Path) -> None:
    masks = [RIGHT[0], [[1], [1], [1]]]
    everything = calls(decoder(execution_provider="cpu"), tmp_path / "all", masks)
    package = decoder(execution_provider="cpu", last_token_logits=True)
    last = calls(package, tmp_path / "last", masks)
    for index, row in zip((4, 1, 2), range(3), strict=True):
        assert np.abs(last[0][row, 0] - everything[0][row, index]).max() < 1e-5
    assert np.abs(last[1] - everything[1]).max() < 1e-5


def test_it_is_declared(decoder: MakeDecoder) -> None:
    shapes = [
        [str(dim) for dim in decoder(weights=False, **options)["model"].graph.outputs[0].shape]
        for options in ({}, {"last_token_logits": True})
    ]
    assert shapes == [["batch", "sequence_length", "64"], ["batch", "1", "64"]]


@pytest.mark.parametrize(
    ("ep", "length"), [("default", "1"), ("cuda", "1"), ("mlx", "sequence_length")]
)
def test_none_is_what_the_runtime_reads(decoder: MakeDecoder, ep: str, length: str) -> None:
    # onnxruntime-genai does not know mlx.
    package = decoder(execution_provider=ep, weights=False, last_token_logits=None)
    assert str(package["model"].graph.outputs[0].shape[1]) == length


def test_a_task_may_have_the_option_itself(decoder: MakeDecoder) -> None:
    package = decoder(weights=False, task=CausalLMTask(last_token_logits=True))
    assert [str(dim) for dim in package["model"].graph.outputs[0].shape] == ["batch", "1", "64"]


def test_another_task_does_not(decoder: MakeDecoder) -> None:
    class Other:
        def build(self, module: Any, config: ArchitectureConfig) -> ModelPackage:
            raise AssertionError("refused before anything is built")

    config = ArchitectureConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
    )
    with pytest.raises(ValueError, match="last_token_logits is an option of the task 'text-gen"):
        mobius.build_from_module(
            CausalLMModel(config), config, task=Other(), last_token_logits=True
        )
    with pytest.raises(AssertionError, match="before anything is built"):
        mobius.build_from_module(
            CausalLMModel(config), config, task=Other(), last_token_logits=None
        )
