"""`parse_dtype`: every usual name of the three element types, and errors that help."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from mobius.dtypes import DTYPE_NAMES, UnknownDtypeError, parse_dtype
from mobius_eps import MobiusError


@pytest.mark.parametrize(
    ("name", "expected"),
    [(name, dtype) for dtype, names in DTYPE_NAMES.items() for name in names],
)
def test_names(name: str, expected: ir.DataType) -> None:
    assert parse_dtype(name) is expected
    assert parse_dtype(f" {name.upper()} ") is expected


def test_the_names_of_the_specification() -> None:
    for name in ("f16", "fp16", "half", "float16", "FLOAT16"):
        assert parse_dtype(name) is ir.DataType.FLOAT16


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_a_type_is_itself(dtype: ir.DataType) -> None:
    assert parse_dtype(dtype) is dtype


def test_unknown_name_suggests() -> None:
    with pytest.raises(UnknownDtypeError) as caught:
        parse_dtype("flaot16")
    assert str(caught.value) == (
        "Unknown dtype 'flaot16'. Supported: ['f32', 'f16', 'bf16']. Did you mean 'float16'?"
    )
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, MobiusError)


@pytest.mark.parametrize("dtype", [ir.DataType.INT8, "int4", "", 10, None])
def test_unknown(dtype: object) -> None:
    # 10 is the number of FLOAT16, and still no dtype.
    with pytest.raises(UnknownDtypeError, match="Unknown dtype"):
        parse_dtype(dtype)  # type: ignore[arg-type]
