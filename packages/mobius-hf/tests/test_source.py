"""`source`: a folder or hub id opened whole, weights only when asked for, clear refusals."""

from __future__ import annotations

import logging
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mobius.sources import OpenedModel, SourceOptions, load_source
from mobius_hf.errors import (
    CheckpointConfigError,
    CheckpointError,
    ModelNotFoundError,
    UnknownModelTypeError,
)
from mobius_hf.source import source


def _open(folder: Path) -> OpenedModel:
    return source.open(str(folder), SourceOptions())


def test_a_folder_is_opened(write_model: Any, tiny_llama: Any, arrays: Any) -> None:
    folder = write_model(tiny_llama, arrays)
    (folder / "tokenizer.json").write_text("{}")
    opened = _open(folder)
    assert opened.name == str(folder)
    assert opened.revision is None
    assert opened.model_type == "llama"
    assert opened.task == "text-generation"
    assert opened.config.hidden_size == 16
    assert opened.files == (folder / "tokenizer.json",)
    weights = opened.load_weights()
    assert weights.keys() == {name for name, _ in opened.make_module().named_parameters()}
    for name, tensor in weights.items():
        np.testing.assert_array_equal(tensor.numpy(), arrays[name])


def test_each_module_is_new(write_model: Any, tiny_llama: Any) -> None:
    opened = _open(write_model(tiny_llama))
    assert opened.make_module() is not opened.make_module()


def test_weights_are_not_looked_for_before_they_are_loaded(
    write_model: Any, tiny_llama: Any
) -> None:
    opened = _open(write_model(tiny_llama))
    with pytest.raises(CheckpointError, match="holds no weights"):
        opened.load_weights()


def test_missing_config(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"has no config.json; it has: no files"):
        _open(tmp_path)


def test_unknown_model_type(write_model: Any, tiny_llama: Any) -> None:
    with pytest.raises(UnknownModelTypeError, match=r"config.json: unknown model_type 'qwen9'"):
        _open(write_model({**tiny_llama, "model_type": "qwen9"}))


def test_c074_own_code_with_an_unknown_model_type(write_model: Any, tiny_llama: Any) -> None:
    config = {**tiny_llama, "model_type": "custom", "auto_map": {"AutoConfig": "c.C"}}
    with pytest.raises(UnknownModelTypeError, match="which Mobius does not run"):
        _open(write_model(config))


def test_own_code_is_not_run_for_a_model_type_that_is_known(
    write_model: Any, tiny_llama: Any, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_model({**tiny_llama, "auto_map": {"AutoConfig": "boom.Config"}})
    (folder / "boom.py").write_text("raise SystemExit('was run')")
    with caplog.at_level(logging.WARNING, "mobius_hf.source"):
        assert _open(folder).model_type == "llama"
    assert "It is not run: the built-in architecture 'llama' is used" in caplog.text


@pytest.mark.parametrize("name", ["LlamaForSequenceClassification", "LlamaModel"])
def test_models_without_a_language_model_head(write_model: Any, tiny_llama: Any, name: str) -> None:
    with pytest.raises(CheckpointConfigError, match=f"'{name}'.*without a language-model head"):
        _open(write_model({**tiny_llama, "architectures": [name]}))


def test_quantized_weights_are_refused_when_loaded(
    write_model: Any, tiny_llama: Any, arrays: Any
) -> None:
    quantization = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    opened = _open(write_model({**tiny_llama, "quantization_config": quantization}, arrays))
    with pytest.raises(CheckpointError, match=r"has weights quantized by 'bitsandbytes'"):
        opened.load_weights()


def test_it_is_registered() -> None:
    (entry_point,) = metadata.entry_points(group="mobius.sources", name="huggingface")
    assert entry_point.load() is source
    assert load_source("huggingface") is source


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import mobius_hf", ["numpy", "onnx_ir", "mobius"]),
        ("import mobius_hf.source", []),
        (
            "from mobius.sources import SourceOptions; from mobius_hf.source import source\n"
            "import sys\n"
            "try: source.open('./gone', SourceOptions())\n"
            "except OSError: pass\n",
            [],
        ),
    ],
)
def test_imports_are_light(statement: str, absent: list[str]) -> None:
    heavy = ["torch", "transformers", "huggingface_hub", "onnxruntime", "safetensors", *absent]
    code = f"{statement}\nimport sys; print([m for m in {heavy!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
