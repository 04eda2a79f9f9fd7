"""Header of a safetensors file -> where each tensor lies, everything checked.

Format: https://github.com/huggingface/safetensors#format. Eight bytes hold the little-endian
length of a JSON object; it maps each name to dtype, shape and byte range; the data follows.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import BinaryIO

import onnx_ir as ir

from mobius_hf.errors import CheckpointError

DTYPES = {
    "BOOL": ir.DataType.BOOL,
    "U8": ir.DataType.UINT8,
    "I8": ir.DataType.INT8,
    "F8_E4M3": ir.DataType.FLOAT8E4M3FN,
    "F8_E5M2": ir.DataType.FLOAT8E5M2,
    "F8_E8M0": ir.DataType.FLOAT8E8M0,
    "U16": ir.DataType.UINT16,
    "I16": ir.DataType.INT16,
    "F16": ir.DataType.FLOAT16,
    "BF16": ir.DataType.BFLOAT16,
    "U32": ir.DataType.UINT32,
    "I32": ir.DataType.INT32,
    "F32": ir.DataType.FLOAT,
    "U64": ir.DataType.UINT64,
    "I64": ir.DataType.INT64,
    "F64": ir.DataType.DOUBLE,
    "C64": ir.DataType.COMPLEX64,
}
_LENGTH_BYTES = 8
_MAX_HEADER = 100_000_000  # the limit of the reference implementation
_DAMAGED = "The file is damaged or not safetensors: download it again."


@dataclasses.dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file.

    Attributes:
        name: Name in the file.
        dtype: Element type.
        shape: Dimensions.
        offset: First byte, counted from the start of the file.
        nbytes: Length in bytes.
    """

    name: str
    dtype: ir.DataType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def read_header(file: BinaryIO, path: Path, size: int) -> dict[str, TensorEntry]:
    """Return the tensors of an open safetensors file by name, in the order of their data.

    Args:
        file: The file, at its start.
        path: Its path, for messages.
        size: Its length in bytes.

    Raises:
        CheckpointError: if the header is damaged, or does not describe exactly `size` bytes.
    """
    header = _read_json(file, path, size)
    data_start = file.tell()
    entries = sorted(
        (
            _entry(path, name, description, data_start)
            for name, description in header.items()
            if name != "__metadata__"
        ),
        key=lambda entry: (entry.offset, entry.nbytes),
    )
    _check_layout(path, entries, data_start, size)
    return {entry.name: entry for entry in entries}


def _read_json(file: BinaryIO, path: Path, size: int) -> dict[str, object]:
    if size < _LENGTH_BYTES:
        raise CheckpointError(
            f"{path} has {size} bytes, less than the {_LENGTH_BYTES} that start a safetensors "
            f"file. {_DAMAGED}"
        )
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if length > _MAX_HEADER:
        raise CheckpointError(
            f"{path}: the header's length is {length} bytes, above the format's limit of "
            f"{_MAX_HEADER}. {_DAMAGED}"
        )
    if length > size - _LENGTH_BYTES:
        raise CheckpointError(
            f"{path} is truncated: its header needs {length} bytes, but the file has "
            f"{size} bytes altogether. Download it again."
        )
    try:
        header = json.loads(file.read(length), object_pairs_hook=_unique_pairs)
    except ValueError as error:
        raise CheckpointError(f"{path}: the header is not JSON: {error}. {_DAMAGED}") from error
    if not isinstance(header, dict):
        raise CheckpointError(
            f"{path}: the header is a JSON {type(header).__name__}, needed: an object. {_DAMAGED}"
        )
    return header


def _unique_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"names occur twice: {twice}")
    return result


def _entry(path: Path, name: str, description: object, data_start: int) -> TensorEntry:
    if not isinstance(description, dict):
        raise CheckpointError(f"{path}: the header's entry {name!r} is no object. {_DAMAGED}")
    dtype = DTYPES.get(str(description.get("dtype")))
    if dtype is None:
        raise CheckpointError(
            f"{path}: tensor {name!r} has dtype {description.get('dtype')!r}; "
            f"readable: {', '.join(DTYPES)}."
        )
    shape = _integers(path, name, "shape", description.get("shape"))
    offsets = _integers(path, name, "data_offsets", description.get("data_offsets"))
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(
            f"{path}: tensor {name!r} has data_offsets {list(offsets)}, needed: a begin and an "
            f"end that is not before it. {_DAMAGED}"
        )
    nbytes = math.prod(shape) * dtype.bitwidth // 8
    if offsets[1] - offsets[0] != nbytes:
        raise CheckpointError(
            f"{path}: tensor {name!r} of dtype {description['dtype']} and shape {list(shape)} "
            f"needs {nbytes} bytes, but its range has {offsets[1] - offsets[0]}. {_DAMAGED}"
        )
    return TensorEntry(name, dtype, shape, data_start + offsets[0], nbytes)


def _integers(path: Path, name: str, field: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(
        isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value
    ):
        raise CheckpointError(
            f"{path}: tensor {name!r} has {field} {value!r}, needed: a list of integers of at "
            f"least 0. {_DAMAGED}"
        )
    return tuple(value)


def _check_layout(path: Path, entries: list[TensorEntry], data_start: int, size: int) -> None:
    end = data_start
    previous = "the header"
    for entry in entries:
        if entry.offset != end:
            fault = "overlaps" if entry.offset < end else "leaves a hole after"
            raise CheckpointError(
                f"{path}: tensor {entry.name!r} at byte {entry.offset} {fault} {previous}, which "
                f"ends at byte {end}. {_DAMAGED}"
            )
        end = entry.offset + entry.nbytes
        previous = repr(entry.name)
    if size < end:
        raise CheckpointError(
            f"{path} is truncated: its header describes {end} bytes, but the file has {size} "
            f"({end - size} are missing). Download it again."
        )
    if size > end:
        raise CheckpointError(
            f"{path}: its header describes {end} bytes, but the file has {size}. {_DAMAGED}"
        )
