"""`tokenizer`: which files are copied, and whose token ids win (C007, C125)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mobius_hf.errors import CheckpointConfigError
from mobius_hf.repository import Folder
from mobius_hf.tokenizer import TokenIds, copied_files, read_token_ids


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
            TokenIds(2, (1, 106), None),
        ),
        (None, {"eos_token_id": 5, "pad_token_id": 0}, TokenIds(None, (5,), 0)),
        ({"pad_token_id": [7, 8]}, {}, TokenIds(None, (), 7)),
        ({"eos_token_id": None}, {"eos_token_id": [3]}, TokenIds(None, (3,), None)),
    ],
)
def test_c007_generation_config_decides(
    tmp_path: Path, generation: Any, config: dict[str, Any], expected: TokenIds
) -> None:
    files = []
    if generation is not None:
        files.append(tmp_path / "generation_config.json")
        files[0].write_text(json.dumps(generation))
    assert read_token_ids(config, tuple(files)) == expected


@pytest.mark.parametrize("value", ["</s>", -1, True, [1, "x"]])
def test_ids_that_are_none(value: object) -> None:
    with pytest.raises(CheckpointConfigError, match=r"eos_token_id is .*; needed: an integer"):
        read_token_ids({"eos_token_id": value}, ())
