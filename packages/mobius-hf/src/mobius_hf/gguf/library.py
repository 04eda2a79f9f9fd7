"""The library `gguf`, which is an optional part: its tensor types, and what it dequantises."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mobius_hf.errors import GgufMissingError


@dataclasses.dataclass(frozen=True)
class TypeSize:
    """How numbers are stored.

    Attributes:
        name: Name in llama.cpp, like `"Q4_K"`.
        number: Its number in a file.
        block: Numbers that are stored together.
        nbytes: Bytes of so many.
    """

    name: str
    number: int
    block: int
    nbytes: int


@functools.cache
def tensor_types() -> Mapping[int, TypeSize]:
    """Return every type of tensor by its number in a file.

    Raises:
        GgufMissingError: if the library is not installed.
    """
    constants = _library().constants
    return {
        int(kind): TypeSize(kind.name, int(kind), block, nbytes)
        for kind, (block, nbytes) in constants.GGML_QUANT_SIZES.items()
    }


def dequantize(rows: npt.NDArray[np.uint8], kind: TypeSize) -> npt.NDArray[np.float32]:
    """Return the numbers `[R, N]` of rows of blocks `[R, bytes]`.

    Raises:
        NotImplementedError: if the library has no such type.
    """
    library = _library()
    numbers: npt.NDArray[np.float32] = library.quants.dequantize(
        rows, library.constants.GGMLQuantizationType(kind.number)
    )
    return numbers


def can_dequantize(kind: TypeSize) -> bool:
    """Return whether the library has a way from `kind` to numbers."""
    try:
        dequantize(np.zeros((1, kind.nbytes), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _library() -> Any:
    try:
        import gguf
        import gguf.quants
    except ImportError as error:
        raise GgufMissingError(
            "Reading a GGUF file needs the library gguf. Install it with: "
            "pip install mobius-hf[gguf]"
        ) from error
    return gguf
