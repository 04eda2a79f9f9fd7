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

_MEASURED = pytest.StashKey[dict[tuple[str, str], float]]()

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
    def get(
        family: str,
        dtype: str,
        ep: str = "onnx-standard",
        opset: int | None = None,
        last_token_logits: bool = False,
    ) -> Path:
        _, folder = checkpoint(family)
        out = tmp_path_factory.mktemp("package") / "out"
        package = mobius.build(
            folder,
            execution_provider=ep,
            dtype=dtype,
            opset=opset,
            last_token_logits=last_token_logits,
        )
        package.save(out)
        return out / "model.onnx"

    return get


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Let the reference leave cores to the runtimes, which have threads of their own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str, float], None]:
    """Keep the largest difference of a logit in a dtype, to be shown at the end."""

    def keep(dtype: str, largest: float) -> None:
        found = request.config.stash.setdefault(_MEASURED, {})
        key = (request.path.stem.removeprefix("test_"), dtype)
        found[key] = max(largest, found.get(key, 0.0))

    return keep


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found = terminalreporter.config.stash.get(_MEASURED, {})
    if found:
        terminalreporter.section("largest differences of logits from transformers in float32")
    for (runtime, dtype), largest in found.items():
        terminalreporter.write_line(f"{runtime} {dtype}: {largest:.2g}")
