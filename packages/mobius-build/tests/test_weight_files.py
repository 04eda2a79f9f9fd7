"""The files behind tensors of every kind, and what has become of them."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from mobius.errors import PackageSaveError
from mobius.streaming import WeightTensor
from mobius.weight_files import files_of, refuse_changed, stamp_files
from mobius_ir_rules.block_quantization import BlockFormat
from mobius_ir_rules.expressions import Leaf, Transpose
from mobius_ir_rules.lazy import DerivedTensor
from mobius_ir_rules.quantized_weights import BlockQuantizedTensor, quantize_weight

SIZE = 32


@dataclasses.dataclass
class Stack:
    """What sources make of several tensors: all that counts is what it is made of."""

    parts: tuple[ir.TensorProtocol, ...]


def stored(path: Path) -> ir.ExternalTensor:
    path.write_bytes(np.ones((SIZE, SIZE), np.float32).tobytes())
    shape = ir.Shape([SIZE, SIZE])
    return ir.ExternalTensor(path, 0, 4 * SIZE**2, ir.DataType.FLOAT, shape=shape, name="w")


def leaf(tensor: ir.TensorProtocol) -> Leaf:
    return Leaf(
        ir.Value(name="w", type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
    )


def test_files_of_tensors_of_every_kind(tmp_path: Path) -> None:
    one, two = stored(tmp_path / "one"), stored(tmp_path / "two")
    turned = DerivedTensor(Transpose(leaf(one), (1, 0)))
    integers = BlockQuantizedTensor(quantize_weight(leaf(one), BlockFormat(4, 32, False)))
    for tensor in (one, WeightTensor(one, ir.DataType.FLOAT16), turned, integers):
        assert files_of([tensor]) == {tmp_path / "one"}
    assert files_of([DerivedTensor(Transpose(leaf(turned), (1, 0)))]) == {tmp_path / "one"}
    stack: ir.TensorProtocol = Stack((two, integers))  # type: ignore[assignment]
    assert files_of([stack, None]) == {tmp_path / "one", tmp_path / "two"}
    assert files_of([ir.tensor([1.0])]) == set()


def test_what_has_changed_is_refused(tmp_path: Path) -> None:
    tensor = stored(tmp_path / "weights")
    path = tmp_path / "weights"
    stamps = stamp_files([tensor])
    refuse_changed(stamps, [path, tmp_path / "of somebody else"])
    time = path.stat().st_mtime_ns
    os.utime(path, ns=(time, time + 1))
    with pytest.raises(PackageSaveError, match="has changed since"):
        refuse_changed(stamps, [path])
    refuse_changed(stamps, [])
    path.write_bytes(path.read_bytes() + b"more")
    os.utime(path, ns=(time, time))
    with pytest.raises(PackageSaveError, match="has changed since"):
        refuse_changed(stamps, [path])
    path.unlink()
    with pytest.raises(PackageSaveError, match="is gone since"):
        refuse_changed(stamps, [path])
    assert stamp_files([tensor]) == {}
