"""`mapped_tensor`: values and bytes equal the safetensors library's, and nothing is copied."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from mobius_hf.errors import CheckpointError
from mobius_hf.mapped_tensor import open_safetensors

NUMPY_DTYPES = ["bool", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8"]
RAW_DTYPES: list[tuple[str, Any, ir.DataType]] = [
    ("BF16", ml_dtypes.bfloat16, ir.DataType.BFLOAT16),
    ("F8_E4M3", ml_dtypes.float8_e4m3fn, ir.DataType.FLOAT8E4M3FN),
    ("F8_E5M2", ml_dtypes.float8_e5m2, ir.DataType.FLOAT8E5M2),
    ("F8_E8M0", ml_dtypes.float8_e8m0fnu, ir.DataType.FLOAT8E8M0),
    ("C64", np.complex64, ir.DataType.COMPLEX64),
]


def _write_raw(path: Path, tensors: dict[str, tuple[str, npt.NDArray[Any]]], pad: int = 0) -> None:
    """Write a file byte by byte, for dtypes that the numpy API of safetensors lacks."""
    header, offset = {}, 0
    for name, (dtype, array) in tensors.items():
        end = offset + array.nbytes
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode() + b" " * pad
    data = b"".join(array.tobytes() for _, array in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_values_equal_the_reference_reader(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    rng = np.random.default_rng(0)
    written = {
        dtype: rng.integers(0, 2, (3, 5)).astype(dtype)
        if dtype == "bool"
        else rng.integers(0, 100, (3, 5)).astype(dtype)
        for dtype in NUMPY_DTYPES
    }
    save_file(written, path)
    tensors = open_safetensors(path)
    with safe_open(path, framework="numpy") as reference:
        assert tensors.keys() == set(reference.keys())
        for name in reference.keys():  # noqa: SIM118 - not a mapping
            expected = reference.get_tensor(name)
            assert tensors[name].numpy().dtype == expected.dtype
            np.testing.assert_array_equal(tensors[name].numpy(), expected)
            assert tensors[name].tobytes() == expected.tobytes()


@pytest.mark.parametrize(("name", "numpy_dtype", "dtype"), RAW_DTYPES)
def test_types_that_numpy_lacks(
    tmp_path: Path, name: str, numpy_dtype: Any, dtype: ir.DataType
) -> None:
    path = tmp_path / "weights.safetensors"
    array = np.array([[0.5, 1.0, 2.0]]).astype(numpy_dtype)
    _write_raw(path, {"t": (name, array)})
    tensor = open_safetensors(path)["t"]
    assert tensor.dtype == dtype
    assert tensor.shape == ir.Shape([1, 3])
    assert tensor.numpy().dtype == array.dtype
    np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("pad", range(8))
def test_data_at_any_alignment(tmp_path: Path, pad: int) -> None:
    path = tmp_path / "weights.safetensors"
    array = np.arange(6, dtype=np.float64).reshape(2, 3)
    _write_raw(path, {"t": ("F64", array)}, pad)
    tensor = open_safetensors(path)["t"]
    np.testing.assert_array_equal(tensor.numpy(), array)
    np.testing.assert_array_equal(np.asarray(tensor), array)


def test_scalars_and_empty_tensors(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"empty": np.empty((0, 4), np.float32), "scalar": np.array(3.0)}, path)
    tensors = open_safetensors(path)
    assert tensors["empty"].numpy().shape == (0, 4)
    assert tensors["empty"].tobytes() == b""
    assert tensors["scalar"].numpy() == 3


def test_arrays_are_read_only_views_of_one_mapping(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"a": np.zeros(8, np.float32), "b": np.ones(8, np.float32)}, path)
    tensor = open_safetensors(path)["a"]
    array = tensor.numpy()
    assert not array.flags.owndata
    assert np.shares_memory(array, tensor.numpy())
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_opening_reads_the_header_alone(tmp_path: Path) -> None:
    """16 GiB of hole, more than the machines that run this have free."""
    path = tmp_path / "weights.safetensors"
    size = 1 << 34
    header = {"t": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + size)
    tensor = open_safetensors(path)["t"]
    assert tensor.nbytes == size
    assert tensor.numpy()[-1] == 0


def test_a_renamed_tensor_is_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"a": np.arange(4, dtype=np.float32)}, path)
    tensor = open_safetensors(path)["a"]
    renamed = tensor.renamed("b")
    assert (tensor.name, renamed.name) == ("a", "b")
    assert np.shares_memory(tensor.numpy(), renamed.numpy())


def test_tofile_writes_where_the_file_stands(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    a, b = np.arange(5, dtype=np.float32), np.arange(7, dtype=np.float16)
    save_file({"a": a, "b": b}, path)
    tensors = open_safetensors(path)
    memory = io.BytesIO()
    with (tmp_path / "out").open("wb") as file:
        for target in (file, memory):
            target.write(b"head")
            tensors["b"].tofile(target)
            tensors["a"].tofile(target)
    expected = b"head" + b.tobytes() + a.tobytes()
    assert (tmp_path / "out").read_bytes() == expected
    assert memory.getvalue() == expected


def test_arrays_keep_the_file_alive_after_it_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"a": np.arange(4, dtype=np.float32)}, path)
    array = open_safetensors(path)["a"].numpy()
    path.unlink()
    np.testing.assert_array_equal(array, np.arange(4, dtype=np.float32))


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_linked_files_load_and_are_written(tmp_path: Path, link: Any) -> None:
    """C111: hub caches and `cp -l` copies are made of links."""
    original, linked = tmp_path / "blobs" / "abc", tmp_path / "snapshot" / "w.safetensors"
    original.parent.mkdir()
    linked.parent.mkdir()
    save_file({"a": np.arange(4, dtype=np.float32)}, original)
    link(original, linked)
    tensor = open_safetensors(linked)["a"]
    with (tmp_path / "out").open("wb") as file:
        tensor.tofile(file)
    assert (tmp_path / "out").read_bytes() == np.arange(4, dtype=np.float32).tobytes()


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"Cannot open the weights file .*gone"):
        open_safetensors(tmp_path / "gone")


def test_onnx_serialises_it(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"a": np.arange(4, dtype=np.float32)}, path)
    tensor = open_safetensors(path)["a"]
    assert isinstance(tensor, ir.TensorProtocol)
    proto = ir.to_proto(tensor)
    assert proto.raw_data == np.arange(4, dtype=np.float32).tobytes()
