"""`safetensors_header`: what is read, and every way in which a file can be damaged."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from mobius_hf.errors import CheckpointError
from mobius_hf.safetensors_header import TensorEntry, read_header

PATH = Path("weights.safetensors")


def _f32(begin: int, end: int, shape: list[int]) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


def _file(header: object, data: int = 0) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data)


def _read(content: bytes) -> dict[str, TensorEntry]:
    return read_header(io.BytesIO(content), PATH, len(content))


def test_entries_are_in_the_order_of_their_data() -> None:
    content = _file(
        {"__metadata__": {"format": "pt"}, "b": _f32(8, 20, [3]), "a": _f32(0, 8, [2, 1])}, 20
    )
    start = len(content) - 20
    assert list(_read(content).values()) == [
        TensorEntry("a", ir.DataType.FLOAT, (2, 1), start, 8),
        TensorEntry("b", ir.DataType.FLOAT, (3,), start + 8, 12),
    ]


def test_scalars_and_empty_tensors() -> None:
    content = _file({"empty": _f32(0, 0, [0, 5]), "scalar": _f32(0, 4, [])}, 4)
    entries = _read(content)
    assert entries["empty"].nbytes == 0
    assert entries["scalar"].shape == ()


def test_a_file_without_tensors() -> None:
    assert _read(_file({})) == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 bytes, less than the 8"),
        (b"1234567", "has 7 bytes, less than the 8"),
        ((2**40).to_bytes(8, "little"), "above the format's limit of 100000000"),
        ((99).to_bytes(8, "little") + b"{}", "truncated: its header needs 99 bytes"),
        (_file(b"{'a': 1}"), "the header is not JSON"),
        (_file(b"\xff\xfe{}"), "the header is not JSON"),
        (_file([]), "the header is a JSON list, needed: an object"),
        (_file(b'{"a": 1, "a": 2}'), r"names occur twice: \['a'\]"),
        (_file({"a": 3}), "entry 'a' is no object"),
        (_file({"a": {}}), "tensor 'a' has dtype None; readable: BOOL"),
        (_file({"a": {**_f32(0, 4, [1]), "dtype": "F4"}}, 4), "tensor 'a' has dtype 'F4'"),
        (_file({"a": _f32(0, 4, [-1])}, 4), r"has shape \[-1\], needed: a list of integers"),
        (_file({"a": {**_f32(0, 4, [1]), "shape": 1}}, 4), "has shape 1, needed"),
        (_file({"a": {**_f32(0, 4, [1]), "shape": [True]}}, 4), "has shape .True., needed"),
        (_file({"a": {**_f32(0, 4, [1]), "data_offsets": [0]}}, 4), "needed: a begin and an end"),
        (_file({"a": _f32(4, 0, [1])}, 4), "an end that is not before it"),
        (_file({"a": _f32(0, 8, [1])}, 8), r"shape \[1\] needs 4 bytes, but its range has 8"),
        (
            _file({"a": _f32(0, 4, [1]), "b": _f32(0, 4, [1])}, 8),
            "tensor 'b' at byte .* overlaps 'a'",
        ),
        (_file({"a": _f32(4, 8, [1])}, 8), "tensor 'a' at byte .* leaves a hole after the header"),
        (_file({"a": _f32(0, 4, [1])}, 5), "describes .* bytes, but the file has"),
    ],
)
def test_damaged_files_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        _read(content)
    assert str(PATH) in str(caught.value)


def test_truncation_is_told_in_bytes() -> None:
    content = _file({"a": _f32(0, 400, [100])}, 400)
    with pytest.raises(CheckpointError) as caught:
        _read(content[:-150])
    assert str(caught.value) == (
        f"{PATH} is truncated: its header describes {len(content)} bytes, but the file has "
        f"{len(content) - 150} (150 are missing). Download it again."
    )
