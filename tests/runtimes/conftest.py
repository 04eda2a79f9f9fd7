"""Checkpoints, packages and references of the tests of runtimes, each made once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import transformers
from tests.parity.reference import make_model
from tests.runtimes.reference import Reference, make_reference

import mobius

ModelFor = Callable[..., Path]
ReferenceFor = Callable[[str, str], Reference]


@pytest.fixture(scope="session")
def checkpoint(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[transformers.PreTrainedModel, Path]]:
    """The model of a family and its saved checkpoint."""

    @functools.cache
    def get(model_type: str) -> tuple[transformers.PreTrainedModel, Path]:
        folder = tmp_path_factory.mktemp(model_type)
        model = make_model(model_type)
        model.save_pretrained(folder)
        return model, folder

    return get


@pytest.fixture(scope="session")
def reference_for(
    checkpoint: Callable[[str], tuple[transformers.PreTrainedModel, Path]],
) -> ReferenceFor:
    """What a family gives in a dtype."""
    return functools.cache(lambda family, dtype: make_reference(checkpoint(family)[0], dtype))


@pytest.fixture(scope="session")
def model_for(
    checkpoint: Callable[[str], tuple[transformers.PreTrainedModel, Path]],
    tmp_path_factory: pytest.TempPathFactory,
) -> ModelFor:
    """The model file of a family's package for a dtype, an EP and an opset."""

    @functools.cache
    def get(family: str, dtype: str, ep: str = "onnx-standard", opset: int | None = None) -> Path:
        _, folder = checkpoint(family)
        out = tmp_path_factory.mktemp("package") / "out"
        mobius.build(folder, execution_provider=ep, dtype=dtype, opset=opset).save(out)
        return out / "model.onnx"

    return get


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Let the reference leave cores to the runtimes, which have threads of their own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
