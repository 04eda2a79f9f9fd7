"""Headers of GGUF files: every type of value, and every way to be damaged."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from mobius_hf.errors import CheckpointError
from mobius_hf.gguf.header import GgufHeader, read_header

VALUES: dict[str, tuple[Any, gguf.GGUFValueType]] = {
    "a.u8": (200, gguf.GGUFValueType.UINT8),
    "a.i8": (-100, gguf.GGUFValueType.INT8),
    "a.u16": (60000, gguf.GGUFValueType.UINT16),
    "a.i16": (-30000, gguf.GGUFValueType.INT16),
    "a.u32": (4_000_000_000, gguf.GGUFValueType.UINT32),
    "a.i32": (-2_000_000_000, gguf.GGUFValueType.INT32),
    "a.f32": (1e-5, gguf.GGUFValueType.FLOAT32),
    "a.f64": (1 / 3, gguf.GGUFValueType.FLOAT64),
    "a.u64": (2**63 + 1, gguf.GGUFValueType.UINT64),
    "a.i64": (-(2**62), gguf.GGUFValueType.INT64),
    "a.true": (True, gguf.GGUFValueType.BOOL),
    "a.text": ("naïve ▁東京", gguf.GGUFValueType.STRING),
    "a.numbers": ([1, -2, 3], gguf.GGUFValueType.ARRAY),
    "a.flags": ([True, False], gguf.GGUFValueType.ARRAY),
    "a.texts": (["", "b", "ç"], gguf.GGUFValueType.ARRAY),
}


def read(path: Path) -> GgufHeader:
    with path.open("rb") as file:
        return read_header(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), path)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "a")
    for key, (value, kind) in VALUES.items():
        writer.add_key_value(key, value, kind)
    writer.add_tensor("matrix", np.arange(96, dtype=np.float32).reshape(3, 32))
    blocks = gguf.quants.quantize(np.ones((5, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blocks", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_every_type_of_value(written: Path) -> None:
    metadata = read(written).metadata
    assert {key: metadata[key] for key in VALUES} == {key: each[0] for key, each in VALUES.items()}
    assert type(metadata["a.true"]) is bool
    assert metadata["general.architecture"] == "a"


def test_tensors_are_where_the_library_says(written: Path) -> None:
    entries = read(written).entries
    for tensor in gguf.GGUFReader(written).tensors:
        entry = entries[tensor.name]
        assert entry.offset == tensor.data_offset
        assert entry.nbytes == tensor.n_bytes
        assert entry.type.name == tensor.tensor_type.name
    assert entries["matrix"].shape == (3, 32)
    assert entries["blocks"].shape == (5, 64)


def test_every_cut_is_noticed(written: Path, tmp_path: Path) -> None:
    """Wherever a download stopped, the error says so, and nothing is read past the end."""
    data = written.read_bytes()
    header = read(written)
    last = max(header.entries.values(), key=lambda entry: entry.offset)
    cut = tmp_path / "cut.gguf"
    for length in [*range(1, last.offset, 7), last.offset + last.nbytes - 1]:
        cut.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=r"is truncated|does not start with"):
            read(cut)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, b"GGML", "does not start with 'GGUF'"),
        (4, struct.pack("<I", 1), "GGUF version 1; readable: 2, 3. Convert"),
        (4, struct.pack(">I", 3), "may be of a big-endian machine"),
    ],
)
def test_other_files(written: Path, at: int, value: bytes, message: str) -> None:
    data = bytearray(written.read_bytes())
    data[at : at + len(value)] = value
    written.write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        read(written)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def tensor(name: str, dimensions: list[int], kind: int, offset: int = 0) -> bytes:
    shape = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


def file(keys: list[bytes], tensors: list[bytes], data: bytes = bytes(4096)) -> bytes:
    counts = struct.pack("<IQQ", 3, len(tensors), len(keys))
    header = b"GGUF" + counts + b"".join(keys) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + data


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (file([text("k") + struct.pack("<II", 4, 1)] * 2, []), "'k' occurs twice"),
        (file([text("k") + struct.pack("<I", 13)], []), "of type 13, which the format does not"),
        (file([text("k") + struct.pack("<IIQ", 9, 99, 1)], []), "of type 99"),
        (file([struct.pack("<Q", 2) + b"\xff\xfe"], []), "is not UTF-8"),
        (file([], [tensor("t", [4], 0), tensor("t", [4], 0)]), "tensor 't' occurs twice"),
        (file([], [tensor("t", [4], 250)]), "type 250, which the installed library"),
        (file([], [tensor("t", [33], 8)]), "rows of 33 numbers, .* the 32 that Q8_0"),
        (file([], [tensor("t", [2**40], 0)]), "is truncated: tensor 't' ends at byte"),
        (
            file([text("general.alignment") + struct.pack("<II", 4, 0)], []),
            "general.alignment is 0",
        ),
    ],
)
def test_damage(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read(path)


def test_alignment_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "a")
    writer.add_custom_alignment(256)
    writer.add_tensor("t", np.arange(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    entry = read(path).entries["t"]
    assert entry.offset % 256 == 0
    found = np.fromfile(path, np.float32, 8, offset=entry.offset)
    np.testing.assert_array_equal(found, np.arange(8))
