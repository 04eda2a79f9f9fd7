"""`parse_dtype`: what a user calls an element type in, `ir.DataType` out."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

from mobius_eps import MobiusError

DTYPE_NAMES: Mapping[ir.DataType, tuple[str, ...]] = MappingProxyType(
    {
        ir.DataType.FLOAT: ("f32", "fp32", "float32", "float"),
        ir.DataType.FLOAT16: ("f16", "fp16", "float16", "half"),
        ir.DataType.BFLOAT16: ("bf16", "bfloat16"),
    }
)
"""The element types that a model can be built in, each with its names, the short one first."""


class UnknownDtypeError(MobiusError, ValueError):
    """No model can be built in the dtype.

    Attributes:
        dtype: What was asked for.
    """

    def __init__(self, dtype: object) -> None:
        """Say what was asked for and what there is."""
        shown = dtype.name if isinstance(dtype, ir.DataType) else dtype
        supported = [names[0] for names in DTYPE_NAMES.values()]
        message = f"Unknown dtype {shown!r}. Supported: {supported}"
        if str(shown).lower().strip().startswith(("int", "q")):
            message += ". Integer weights are quantize='int4' or 'int8' (--quantize)."
        near = difflib.get_close_matches(str(dtype).lower(), _BY_NAME, n=1)
        super().__init__(f"{message}. Did you mean {near[0]!r}?" if near else message)
        self.dtype = dtype


def short_name(dtype: ir.DataType) -> str:
    """Return what users call an element type: `f16`, or ONNX's name in small letters for others."""
    return DTYPE_NAMES.get(dtype, (dtype.name.lower(),))[0]


def parse_dtype(dtype: str | ir.DataType) -> ir.DataType:
    """Return the element type that `dtype` names, whatever its case.

    Raises:
        UnknownDtypeError: if `dtype` is no name or type of `DTYPE_NAMES`.
    """
    if isinstance(dtype, ir.DataType):
        found = dtype if dtype in DTYPE_NAMES else None
    else:
        found = _BY_NAME.get(dtype.strip().lower()) if isinstance(dtype, str) else None
    if found is None:
        raise UnknownDtypeError(dtype)
    return found


_BY_NAME = {name: dtype for dtype, names in DTYPE_NAMES.items() for name in names}
