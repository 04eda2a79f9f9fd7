"""`tokenizer`: which files are copied, and which file decides about generating (C007, C125)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mobius.generation import GenerationSettings
from mobius_hf.errors import CheckpointConfigError
from mobius_hf.repository import Folder
from mobius_hf.tokenizer import copied_files, read_generation


def test_known_files_are_copied_and_no_others(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json", "README.md"):
        (tmp_path / name).touch()
    (tmp_path / "model.safetensors").touch()
    names = [path.name for path in copied_files(Folder("model", tmp_path))]
    assert names == ["chat_template.jinja", "generation_config.json", "tokenizer.json"]


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        (
            {"eos_token_id": [1, 106]},
            {"eos_token_id": 1, "bos_token_id": 2},
            GenerationSettings(bos=2, eos=(1, 106)),
        ),
        (None, {"eos_token_id": 5, "pad_token_id": 0}, GenerationSettings(eos=(5,), pad=0)),
        ({"pad_token_id": [7, 8]}, {}, GenerationSettings(pad=7)),
        ({"eos_token_id": None}, {"eos_token_id": [3]}, GenerationSettings(eos=(3,))),
    ],
)
def test_c007_generation_config_decides(
    tmp_path: Path, generation: Any, config: dict[str, Any], expected: GenerationSettings
) -> None:
    files = []
    if generation is not None:
        files.append(tmp_path / "generation_config.json")
        files[0].write_text(json.dumps(generation))
    assert read_generation(config, tuple(files)) == expected


@pytest.mark.parametrize("value", ["</s>", -1, True, [1, "x"]])
def test_ids_that_are_none(value: object) -> None:
    with pytest.raises(CheckpointConfigError, match=r"eos_token_id is .*; needed: an integer"):
        read_generation({"eos_token_id": value}, ())


def test_search_defaults_are_those_of_generation_config(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    search = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 1, "num_beams": None}
    path.write_text(json.dumps({**search, "max_new_tokens": 9, "transformers_version": "5"}))
    settings = read_generation({"temperature": 0.1}, (path,))
    assert settings.search == {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 1}


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("temperature", "0.7", "float"),
        ("top_k", 1.5, "int"),
        ("do_sample", 1, "bool"),
        ("top_p", True, "float"),
    ],
)
def test_search_defaults_of_the_wrong_type(
    tmp_path: Path, name: str, value: object, needed: str
) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({name: value}))
    message = f"generation_config.json: {name} is {value!r}; needed: {needed}, or null"
    with pytest.raises(CheckpointConfigError, match=message):
        read_generation({}, (path,))
