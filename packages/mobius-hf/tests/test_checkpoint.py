"""`checkpoint`: which files make a checkpoint, and how they can fail to fit (C009, C111)."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from mobius_hf.checkpoint import INDEX, SINGLE, Checkpoint, open_checkpoint
from mobius_hf.errors import CheckpointError
from mobius_hf.repository import Folder

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def _array(value: float) -> npt.NDArray[Any]:
    return np.full(3, value, np.float32)


def _open(folder: Path) -> Checkpoint:
    return open_checkpoint(Folder(str(folder), folder))


def _value(checkpoint: Checkpoint, name: str) -> float:
    return float(checkpoint[name].numpy()[0])


@pytest.fixture
def sharded(write_model: Any) -> Path:
    folder: Path = write_model(shards={ONE: {"a": _array(1)}, TWO: {"b": _array(2)}})
    return folder


def _rewrite_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_single_file(write_model: Any) -> None:
    folder = write_model(tensors={"a": _array(1), "b": _array(2)})
    checkpoint = _open(folder)
    assert set(checkpoint) == {"a", "b"}
    assert len(checkpoint) == 2
    assert checkpoint.files == (folder / SINGLE,)
    assert _value(checkpoint, "b") == 2


def test_shards(sharded: Path) -> None:
    checkpoint = _open(sharded)
    assert {name: _value(checkpoint, name) for name in checkpoint} == {"a": 1, "b": 2}
    assert checkpoint.files == (sharded / ONE, sharded / TWO)


def test_c009_missing_shard_is_named(sharded: Path) -> None:
    (sharded / TWO).unlink()
    with pytest.raises(CheckpointError, match=f"lacks {TWO} of the 2 weight files that"):
        _open(sharded)


def test_c009_the_index_decides_between_two_of_one_name(sharded: Path) -> None:
    save_file({"b": _array(2), "a": _array(99)}, sharded / TWO)
    assert _value(_open(sharded), "a") == 1


def test_c009_a_stray_single_file_is_ignored(sharded: Path) -> None:
    save_file({"a": _array(99), "stray": _array(99)}, sharded / SINGLE)
    checkpoint = _open(sharded)
    assert set(checkpoint) == {"a", "b"}
    assert _value(checkpoint, "a") == 1


def test_tensors_that_the_index_lacks_are_ignored_and_told(
    sharded: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_file({"b": _array(2), "extra": _array(99)}, sharded / TWO)
    with caplog.at_level(logging.WARNING, "mobius_hf.checkpoint"):
        assert set(_open(sharded)) == {"a", "b"}
    assert caplog.messages == [f"{TWO}: ignored tensor 'extra', which the index lacks"]


def test_tensor_that_is_not_in_its_shard(sharded: Path) -> None:
    _rewrite_index(sharded, {"a": ONE, "b": TWO, "c": TWO})
    with pytest.raises(CheckpointError, match=f"'c' is in {TWO}, but that file does not hold it"):
        _open(sharded)


@pytest.mark.parametrize(
    "shard",
    ["../x.safetensors", "/x.safetensors", "sub/x.safetensors", "..\\x.safetensors",
     "C:x.safetensors", "x.bin", "", 3, None],
)  # fmt: skip
def test_c111_index_that_leaves_the_folder(sharded: Path, shard: object) -> None:
    save_file({"b": _array(2)}, sharded.parent / "x.safetensors")
    _rewrite_index(sharded, {"a": ONE, "b": shard})
    with pytest.raises(CheckpointError, match=r"puts 'b' in .*needed: the name of a .safetensors"):
        _open(sharded)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "has no 'weight_map'"),
        ("{}", "has no 'weight_map'"),
        ('{"weight_map": {}}', "has no 'weight_map'"),
        ('{"weight_map": ["a"]}', "has no 'weight_map'"),
    ],
)
def test_damaged_index(sharded: Path, content: str, message: str) -> None:
    (sharded / INDEX).write_text(content)
    with pytest.raises(CheckpointError, match=message):
        _open(sharded)


def test_truncated_shard(sharded: Path) -> None:
    content = (sharded / TWO).read_bytes()
    (sharded / TWO).write_bytes(content[:-4])
    with pytest.raises(CheckpointError, match=rf"{TWO} is truncated.*\(4 are missing\)"):
        _open(sharded)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("pytorch_model.bin", "only as pytorch_model.bin, a pickle.*save_pretrained"),
        ("consolidated.00.pth", "only as consolidated.00.pth, a pickle"),
        (ONE, f"has {ONE}, but neither model.safetensors nor"),
        ("model.gguf", "holds no weights in safetensors.*Name one of them: .*/model.gguf"),
        ("model.onnx", "holds no weights.*it has: model.onnx"),
    ],
)
def test_formats_that_are_not_read(tmp_path: Path, file: str, message: str) -> None:
    (tmp_path / file).write_bytes(b"\x80\x04")
    with pytest.raises(CheckpointError, match=message):
        _open(tmp_path)


def test_no_files_at_all(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="it has: nothing"):
        _open(tmp_path)
