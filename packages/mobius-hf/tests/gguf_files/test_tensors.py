"""Tensors of GGUF files: numbers as the library reads them, lazily, from one file or several."""

from __future__ import annotations

import builtins
import os
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from mobius.streaming import in_file, visit_chunks
from mobius_hf.errors import CheckpointError, GgufMissingError
from mobius_hf.gguf import library, tensors
from mobius_hf.gguf.tensors import QuantizedTensor, open_gguf

Kind = gguf.GGMLQuantizationType
# Of every type that llama.cpp writes commonly, bytes that make finite scales.
BLOCKS = [
    *(Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.Q2_K, Kind.Q3_K, Kind.Q4_K),
    *(Kind.Q5_K, Kind.Q6_K, Kind.IQ4_NL, Kind.IQ4_XS, Kind.IQ2_XXS, Kind.IQ2_XS, Kind.IQ2_S),
    *(Kind.IQ3_XXS, Kind.IQ3_S, Kind.IQ1_S, Kind.TQ1_0, Kind.TQ2_0, Kind.MXFP4),
]


def write(path: Path, data: dict[str, tuple[np.ndarray, Kind]], **keys: int) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in keys.items():
        writer.add_uint16(f"split.{key}", value)
    for name, (values, kind) in data.items():
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", BLOCKS, ids=lambda kind: kind.name)
def test_blocks_are_dequantised_a_part_at_a_time(
    tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three dimensions, rows of several blocks, parts that do not divide the rows."""
    block, nbytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(0)
    # Bytes below 60 are float16 scales from 0 to 1, wherever a type has them.
    blocks = rng.integers(0, 60, (3, 7, 2 * nbytes), np.uint8)
    write(tmp_path / "model.gguf", {"t": (blocks, kind)})
    tensor = open_gguf(tmp_path / "model.gguf").tensors["t"]
    assert isinstance(tensor, QuantizedTensor)
    assert (tensor.dtype, tuple(tensor.shape.numpy())) == (ir.DataType.FLOAT, (3, 7, 2 * block))
    expected = gguf.quants.dequantize(blocks, kind).reshape(3, 7, 2 * block)
    assert np.isfinite(expected).all()
    assert expected.std() > 0
    np.testing.assert_array_equal(tensor.numpy(), expected)
    monkeypatch.setattr(tensors, "_CHUNK_NUMBERS", 5 * 2 * block)
    parts: list[np.ndarray] = []
    visit_chunks(tensor, lambda part: parts.append(part.copy()))
    assert len(parts) == 5
    np.testing.assert_array_equal(np.concatenate(parts), expected.ravel())
    assert in_file(tensor) is None  # the file has other bytes


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(Kind.F32, np.float32), (Kind.F16, np.float16), (Kind.BF16, ml_dtypes.bfloat16)],
)
def test_plain_tensors_stay_as_they_are(tmp_path: Path, kind: Kind, dtype: Any) -> None:
    values = np.random.default_rng(0).standard_normal((3, 32)).astype(dtype)
    stored = values.view(np.uint8) if kind == Kind.BF16 else values
    write(tmp_path / "model.gguf", {"t": (stored, kind)})
    tensor = open_gguf(tmp_path / "model.gguf").tensors["t"]
    np.testing.assert_array_equal(tensor.numpy(), values, strict=True)
    found = in_file(tensor)
    assert found is not None  # a graph can point at it
    data = (tmp_path / "model.gguf").read_bytes()
    assert data[found.offset or 0 :][: found.nbytes] == values.tobytes()


def test_nothing_is_read_before_it_is_asked_for(tmp_path: Path) -> None:
    values = gguf.quants.quantize(np.ones((2, 32), np.float32), Kind.Q8_0)
    path = tmp_path / "model.gguf"
    write(path, {"t": (values, Kind.Q8_0)})
    tensor = open_gguf(path).tensors["t"]
    data = bytearray(path.read_bytes())
    data[-96:] = bytes(96)  # 2 rows of 34 bytes, and what aligns the end
    path.write_bytes(data)
    assert not tensor.numpy().any()


def test_a_file_that_is_cut_off_later(tmp_path: Path) -> None:
    values = gguf.quants.quantize(np.ones((2, 32), np.float32), Kind.Q8_0)
    path = tmp_path / "model.gguf"
    write(path, {"t": (values, Kind.Q8_0)})
    tensor = open_gguf(path).tensors["t"]
    os.truncate(path, path.stat().st_size - 32)
    with pytest.raises(OSError, match="has become shorter while 't' was read"):
        tensor.numpy()


def test_a_type_that_is_not_dequantised(tmp_path: Path) -> None:
    _, nbytes = gguf.GGML_QUANT_SIZES[Kind.Q8_K]
    write(tmp_path / "model.gguf", {"t": (np.zeros((1, nbytes), np.uint8), Kind.Q8_K)})
    with pytest.raises(CheckpointError, match=r"'t' is of type Q8_K, which .* cannot dequantise"):
        open_gguf(tmp_path / "model.gguf")


def part(index: int, count: int = 2) -> str:
    return f"model-{index:05}-of-{count:05}.gguf"


@pytest.fixture
def split(tmp_path: Path) -> Path:
    for index, value in enumerate((1.0, 2.0)):
        data = {f"t{index}": (np.full(32, value, np.float32), Kind.F32)}
        write(tmp_path / part(index + 1), data, no=index, count=2)
    return tmp_path


@pytest.mark.parametrize("index", [1, 2])
def test_any_part_opens_all(split: Path, index: int) -> None:
    file = open_gguf(split / part(index))
    assert file.path == split / part(1)
    assert {name: tensor.numpy()[0] for name, tensor in file.tensors.items()} == {"t0": 1, "t1": 2}


def test_c009_a_missing_part_is_named(split: Path) -> None:
    (split / part(2)).unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.gguf is not beside it"):
        open_gguf(split / part(1))


def test_a_part_under_another_name(split: Path) -> None:
    (split / part(1)).rename(split / "first.gguf")
    with pytest.raises(CheckpointError, match="does not end in"):
        open_gguf(split / "first.gguf")


def test_a_tensor_in_two_parts(split: Path) -> None:
    write(split / part(2), {"t0": (np.ones(32, np.float32), Kind.F32)}, no=1, count=2)
    with pytest.raises(CheckpointError, match="'t0' is in another part too"):
        open_gguf(split / part(1))


@pytest.mark.parametrize("content", [b"", b"GG"])
def test_files_that_are_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"is empty|truncated"):
        open_gguf(tmp_path / "model.gguf")


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "model.gguf", {"t": (np.ones(32, np.float32), Kind.F32)})
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "gguf":
            raise ImportError("No module named 'gguf'")
        return real(name, *arguments, **options)

    library.tensor_types.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(GgufMissingError, match=r"pip install mobius-hf\[gguf\]"):
        open_gguf(tmp_path / "model.gguf")
