"""Which bytes of a file are those of a tensor, and tensors that write themselves into arrays."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from mobius import streaming
from mobius.streaming import WeightTensor, in_file, visit_chunks
from mobius_ir_rules.lazy import (
    Cast,
    Concat,
    DerivedTensor,
    Expression,
    Leaf,
    Reshape,
    Slice,
    Transpose,
)

VALUES = np.arange(7 * 5 * 3, dtype=np.float32).reshape(7, 5, 3)
AT = 12


@pytest.fixture
def stored(tmp_path: Path) -> ir.ExternalTensor:
    """Return `VALUES` as a tensor that starts at byte `AT` of a file."""
    (tmp_path / "data").write_bytes(bytes(AT) + VALUES.tobytes())
    return ir.ExternalTensor(
        "data",
        AT,
        VALUES.nbytes,
        ir.DataType.FLOAT,
        shape=ir.Shape(VALUES.shape),
        name="w",
        base_dir=tmp_path,
    )


def leaf(tensor: ir.TensorProtocol) -> Leaf:
    shape = ir.Shape(tensor.shape.numpy())
    value = ir.Value(name="w", shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    return Leaf(value)


def read(tensor: ir.TensorProtocol) -> np.ndarray:
    """Return the numbers that visiting a tensor gives, flat."""
    parts: list[np.ndarray] = []
    visit_chunks(tensor, lambda part: parts.append(part.copy()))
    return np.concatenate(parts)


EVERY = slice(None)
IN_FILE = {
    "all of it": (lambda w: w, VALUES),
    "another shape": (lambda w: Reshape(w, (35, 3)), VALUES.reshape(35, 3)),
    "rows": (lambda w: Slice(w, (slice(2, 5), EVERY, EVERY)), VALUES[2:5]),
    "the last rows": (lambda w: Slice(w, (slice(-2, None), EVERY, EVERY)), VALUES[-2:]),
    "rows of another shape": (
        lambda w: Slice(Reshape(w, (35, 3)), (slice(4, 9), slice(0, 3))),
        VALUES.reshape(35, 3)[4:9],
    ),
    "rows of rows": (
        lambda w: Slice(Slice(w, (slice(2, 7), EVERY, EVERY)), (slice(1, 3), EVERY, EVERY)),
        VALUES[3:5],
    ),
}


@pytest.mark.parametrize("name", IN_FILE)
def test_bytes_that_a_file_has(stored: ir.ExternalTensor, name: str) -> None:
    make, expected = IN_FILE[name]
    for tensor in (stored, WeightTensor(stored, ir.DataType.FLOAT)):
        derived = DerivedTensor(make(leaf(tensor)))
        found = in_file(derived)
        assert found is not None
        data = Path(found.path).read_bytes()
        assert data[found.offset or 0 :][: found.nbytes] == expected.tobytes()
        np.testing.assert_array_equal(read(derived), expected.ravel())
    assert stored.raw is None  # read, not mapped


NOT_IN_FILE = {
    "columns": lambda w: Slice(w, (EVERY, slice(1, 3), EVERY)),
    "every other row": lambda w: Slice(w, (slice(None, None, 2), EVERY, EVERY)),
    "rows backwards": lambda w: Slice(w, (slice(None, None, -1), EVERY, EVERY)),
    "columns backwards": lambda w: Slice(w, (EVERY, slice(None, None, -1), EVERY)),
    "transposed": lambda w: Transpose(w, (1, 0, 2)),
    "joined": lambda w: Concat((w, w), 0),
    "cast": lambda w: Cast(w, ir.DataType.FLOAT16),
}


@pytest.mark.parametrize("name", NOT_IN_FILE)
def test_bytes_that_no_file_has(stored: ir.ExternalTensor, name: str) -> None:
    expression: Expression = NOT_IN_FILE[name](leaf(stored))
    derived = DerivedTensor(expression)
    assert in_file(derived) is None
    np.testing.assert_array_equal(read(derived), expression.array().ravel())


def test_other_tensors_are_in_no_file(stored: ir.ExternalTensor) -> None:
    assert in_file(None) is None
    assert in_file(ir.tensor(VALUES)) is None
    assert in_file(WeightTensor(stored, ir.DataType.FLOAT16)) is None
    assert in_file(DerivedTensor(leaf(ir.tensor(VALUES)))) is None


class Pieces(ir.ExternalTensor):
    """A tensor whose file is read in pieces of a few numbers."""

    def tofile(self, file: object) -> None:
        data = Path(self.path).read_bytes()[self.offset or 0 :][: self.nbytes]
        for start in range(0, len(data), 4 * 4):
            file.write(data[start : start + 16])  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)])
def test_pieces_go_where_they_belong(
    stored: ir.ExternalTensor, axes: tuple[int, int, int], dtype: type
) -> None:
    """Pieces of four numbers end within rows of three; the array may be of any strides."""
    pieces = Pieces(
        "data",
        AT,
        VALUES.nbytes,
        ir.DataType.FLOAT,
        shape=ir.Shape(VALUES.shape),
        name="w",
        base_dir=stored.base_dir,
    )
    memory = np.zeros([VALUES.shape[axis] for axis in axes], dtype)
    out = memory.transpose(np.argsort(axes))
    WeightTensor(pieces, ir.DataType.FLOAT).fill(out)
    np.testing.assert_array_equal(out, VALUES.astype(dtype))
    whole = DerivedTensor(Transpose(leaf(WeightTensor(pieces, ir.DataType.FLOAT)), axes))
    np.testing.assert_array_equal(whole.numpy(), VALUES.transpose(axes))


def test_a_transposed_weight_is_never_whole_beside_its_result(
    stored: ir.ExternalTensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C110: what is derived from a weight in a file reads it a part at a time."""
    monkeypatch.setattr(
        streaming.WeightTensor, "_read", lambda self: pytest.fail("the weight was read whole")
    )
    weight = leaf(WeightTensor(stored, ir.DataType.FLOAT))
    joined = Concat((Transpose(weight, (1, 0, 2)), Transpose(weight, (1, 0, 2))), 1)
    np.testing.assert_array_equal(
        DerivedTensor(joined).numpy(), np.concatenate([VALUES.transpose(1, 0, 2)] * 2, axis=1)
    )
