"""`open_session(path)`: a model on ONNX Runtime, the only place that runs one (extra `ort`)."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from mobius_eps import MobiusError

__all__ = [
    "CPU",
    "Array",
    "OrtError",
    "OrtMissingError",
    "Port",
    "Session",
    "import_onnxruntime",
    "open_session",
    "to_ort_value",
]

Array = npt.NDArray[Any]

CPU = "CPUExecutionProvider"

# The types that ONNX Runtime takes, by its own names, where they are not those of ONNX in lower
# case.
_TYPE_NAMES = {
    "float": ir.DataType.FLOAT,
    "double": ir.DataType.DOUBLE,
}
# numpy has no number for these, so ONNX Runtime gives and takes their bits.
_AS_BITS = {
    ir.DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    ir.DataType.FLOAT8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    ir.DataType.FLOAT8E5M2: np.dtype(ml_dtypes.float8_e5m2),
}
_BITS = {1: np.uint8, 2: np.uint16}


_NO_KERNEL = ". Build for an execution provider and a dtype that run here (--ep cpu --dtype f32)."


class OrtMissingError(MobiusError, ImportError):
    """ONNX Runtime is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "Running a model needs ONNX Runtime, which is not installed: "
            "pip install 'mobius-build[ort]'"
        )


class OrtError(MobiusError, RuntimeError):
    """ONNX Runtime cannot load or run a model."""


@dataclasses.dataclass(frozen=True)
class Port:
    """An input or output of a model.

    Attributes:
        name: Its name.
        dtype: Its element type.
        shape: A number, a name, or `None` for each dimension.
    """

    name: str
    dtype: ir.DataType
    shape: tuple[int | str | None, ...]


class Session:
    """A loaded model.

    Attributes:
        path: The file.
        inputs: What it takes, in order.
        outputs: What it gives, in order.
        native: ONNX Runtime's own session.
    """

    def __init__(self, path: Path, session: Any) -> None:
        self.path = path
        self.native = session
        self.inputs = tuple(_port(each, path) for each in session.get_inputs())
        self.outputs = tuple(_port(each, path) for each in session.get_outputs())

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Return every output by name; bfloat16 and the 8-bit floats are those of ml_dtypes.

        Raises:
            OrtError: with what ONNX Runtime says.
        """
        try:
            values = {port.name: to_ort_value(feed[port.name], port.dtype) for port in self.inputs}
            results = self.native.run_with_ort_values(None, values)
        except Exception as error:  # ONNX Runtime has a class of its own for each status
            raise OrtError(f"{self.path} does not run: {error}") from error
        return {
            port.name: _from_ort(value, port.dtype)
            for port, value in zip(self.outputs, results, strict=True)
        }


def open_session(path: Path, providers: Sequence[str] = (CPU,)) -> Session:
    """Load a model.

    Args:
        path: An `.onnx` file.
        providers: Execution providers by ONNX Runtime's names, the preferred one first.

    Raises:
        OrtMissingError: if ONNX Runtime is not installed.
        OrtError: if it does not load the model, or lacks one of the providers.
    """
    onnxruntime = import_onnxruntime()
    available = onnxruntime.get_available_providers()
    lacking = [name for name in providers if name not in available]
    if lacking:
        raise OrtError(
            f"This ONNX Runtime has no {lacking}. It has {available}; install the package of "
            "ONNX Runtime that brings the one you need."
        )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors; they are raised besides
    try:
        session = onnxruntime.InferenceSession(path, options, providers=list(providers))
    except Exception as error:  # as above
        # ONNX Runtime has a class of its own for each status; it exports none of them.
        hint = _NO_KERNEL if type(error).__name__ == "NotImplemented" else ""
        raise OrtError(f"ONNX Runtime does not load {path}: {error}{hint}") from error
    return Session(path, session)


def import_onnxruntime() -> Any:
    """Return the module `onnxruntime`.

    Raises:
        OrtMissingError: if it is not installed.
    """
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError as error:
        raise OrtMissingError from error
    return onnxruntime


def _port(port: Any, path: Path) -> Port:
    kind = str(port.type)
    name = kind.removeprefix("tensor(").removesuffix(")")
    dtype = _TYPE_NAMES.get(name) or ir.DataType.__members__.get(name.upper())
    if not kind.startswith("tensor(") or dtype is None:
        raise OrtError(f"{path}: {port.name!r} is a {kind}; only tensors are supported.")
    shape = tuple(dim if isinstance(dim, int) else (dim or None) for dim in port.shape)
    return Port(port.name, dtype, shape)


def to_ort_value(array: Array, dtype: ir.DataType) -> Any:
    """Return `array` as an OrtValue on the CPU; bfloat16 and 8-bit floats are ml_dtypes'."""
    onnxruntime = import_onnxruntime()
    array = np.ascontiguousarray(array)
    if dtype in _AS_BITS:
        bits = array.view(_BITS[array.itemsize])
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, int(dtype))
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _from_ort(value: Any, dtype: ir.DataType) -> Array:
    if dtype not in _AS_BITS:
        array: Array = value.numpy()
        return array
    size = value.tensor_size_in_bytes()
    data = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(data, _AS_BITS[dtype]).reshape(value.shape())
