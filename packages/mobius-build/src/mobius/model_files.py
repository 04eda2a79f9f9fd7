"""Models that a user names by path: `find_graphs` (file or folder) and `read_model_file`."""

from __future__ import annotations

import collections
import math
from pathlib import Path

import onnx_ir as ir

from mobius.dtypes import DTYPE_NAMES
from mobius.errors import ModelFileError, cause_of
from mobius.manifest import MANIFEST_NAME, Manifest

__all__ = ["DataFile", "find_graphs", "model_dtype", "read_manifest", "read_model_file"]

MODEL_NAME = "model.onnx"


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a package; `None` if `folder` is none.

    Raises:
        PackageLoadError: (a `ValueError`) if it is damaged.
    """
    path = folder / MANIFEST_NAME
    if not path.is_file():
        return None
    return Manifest.from_json(path.read_text(encoding="utf-8"), where=str(path))


def find_graphs(path: Path) -> dict[str, Path]:
    """Return the `.onnx` files that can run of a package by key; of any other model, `model`.

    Raises:
        ModelFileError: if there is none.
        PackageLoadError: (a `ValueError`) if a package's manifest is damaged.
    """
    manifest = read_manifest(path)
    if manifest is not None:
        if not manifest.weights:
            raise ModelFileError(
                f"{path} was saved without weights and cannot run. Build it with them."
            )
        return {key: path / entry.path for key, entry in manifest.models.items()}
    if path.is_dir():
        if (path / MODEL_NAME).is_file():
            return {"model": path / MODEL_NAME}
        raise ModelFileError(
            f"{path} has neither {MANIFEST_NAME} nor {MODEL_NAME}. Name a package's folder or an "
            ".onnx file."
        )
    return {"model": path}


def read_model_file(path: Path, *, with_data: bool = True) -> ir.Model:
    """Read an `.onnx` file; external data stay on disk until they are used.

    Args:
        path: The file.
        with_data: Check that external data are there and complete. Otherwise initializers that
            have some get none, and the data need not be there.

    Raises:
        ModelFileError: naming what is missing, cut off or not ONNX.
    """
    if path.is_dir():
        raise ModelFileError(f"{path} is a folder. Name the .onnx file in it.")
    if not path.is_file():
        raise ModelFileError(f"{path} does not exist.")
    try:
        model = ir.load(path)
    except Exception as error:  # protobuf, onnx and onnx_ir each raise their own kinds
        raise ModelFileError(f"{path} is not a readable ONNX file ({cause_of(error)}).") from error
    if not len(model.graph) and not model.graph.outputs:
        raise ModelFileError(f"{path} is not an ONNX model: it has no graph.")
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _checked(value.const_value, path) if with_data else None
            elif isinstance(value.const_value, ir.serde.TensorProtoTensor):
                _require_bytes(value.const_value, path)
    if with_data:
        _read_constants(model, path)
    return model


def _require_bytes(tensor: ir.serde.TensorProtoTensor, path: Path) -> None:
    """Refuse a tensor whose bytes are not as many as its shape and dtype need."""
    proto = tensor.raw
    if proto.HasField("raw_data") and len(proto.raw_data) != tensor.nbytes:
        raise ModelFileError(
            f"{path}: {tensor.name!r} has {len(proto.raw_data)} bytes, and its shape and dtype "
            f"need {tensor.nbytes}. The file is damaged; make it again."
        )


def model_dtype(model: ir.Model) -> ir.DataType:
    """Return the float type that most numbers of the weights have; without any, of the inputs.

    float32 for a model with no float at all.
    """
    counts: collections.Counter[ir.DataType] = collections.Counter()
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.dtype and value.shape is not None and value.shape.is_static():
                counts[value.dtype] += max(1, math.prod(value.shape.numpy()))
    counts = collections.Counter({each: n for each, n in counts.items() if each in DTYPE_NAMES})
    if not counts:
        dtypes = (value.dtype for value in model.graph.inputs)
        counts.update(dtype for dtype in dtypes if dtype is not None and dtype in DTYPE_NAMES)
    return max(counts, key=lambda dtype: counts[dtype], default=ir.DataType.FLOAT)


def _read_constants(model: ir.Model, path: Path) -> None:
    """Take the external data of constants in nodes into memory: only initializers are streamed."""
    roots: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for root in roots:
        for node in root.all_nodes():
            for attribute in node.attributes.values():
                if attribute.type is ir.AttributeType.TENSOR and not attribute.is_ref():
                    tensor = attribute.as_tensor()
                    if isinstance(tensor, ir.ExternalTensor):
                        array = _checked(tensor, path).numpy()
                        inner = ir.Tensor(array, dtype=tensor.dtype, name=tensor.name)
                        node.attributes.add(ir.AttrTensor(attribute.name, inner))


class DataFile(ir.ExternalTensor):
    """A tensor in a file that is known to be there, which also knows how its model names it.

    onnx_ir refuses data files that have several hard links or that a symbolic link leads out of
    the folder; a copy made with `cp -l` and the cache of a hub are like that. The user has named
    the model, so its data are addressed by their full path.

    Attributes:
        original_location: The location as the model's file has it.
    """

    original_location: str


def _checked(tensor: ir.ExternalTensor, model_path: Path) -> DataFile:
    folder = model_path.parent
    location = Path(tensor.location)
    if location.is_absolute() or ".." in location.parts:
        raise ModelFileError(
            f"{model_path}: the data of {tensor.name!r} are in {str(location)!r}, which leads out "
            "of its folder. Do not use this file if you do not know where it is from."
        )
    path = folder / location
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ModelFileError(
            f"{path}, which holds the data of {model_path.name}, cannot be read "
            f"({error.strerror}). Copy it to where it belongs."
        ) from error
    end = (tensor.offset or 0) + (tensor.length or tensor.nbytes)
    if size < end:
        raise ModelFileError(
            f"{path} is cut off: it has {size} bytes, and {tensor.name!r} ends at {end}. Copy it "
            "again."
        )
    checked = DataFile(
        path.resolve(),
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=ir.Shape(tuple(tensor.shape)),
        name=tensor.name or "",
    )
    checked.original_location = str(tensor.location)
    return checked
