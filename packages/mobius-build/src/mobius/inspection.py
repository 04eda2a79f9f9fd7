"""`inspect_path`: what a package or an `.onnx` file holds, without reading its weights."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from mobius.errors import ModelFileError
from mobius.manifest import Manifest
from mobius.model_files import MODEL_NAME, read_manifest, read_model_file
from mobius_ir_rules.passes.graphs import op_counts

__all__ = ["GraphInspection", "Inspection", "Port", "Weights", "inspect_path"]


@dataclasses.dataclass(frozen=True)
class Port:
    """An input or output of a graph.

    Attributes:
        name: Its name.
        dtype: ONNX name of its element type; `None` if the graph does not say.
        shape: A number, a name or `None` for each dimension; `None` if the rank is unknown.
    """

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None


@dataclasses.dataclass(frozen=True)
class Weights:
    """The initializers of one element type.

    Attributes:
        tensors: How many there are.
        elements: How many numbers they hold.
        bytes: How large they are.
    """

    tensors: int
    elements: int
    bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphInspection:
    """One graph.

    Attributes:
        path: Its `.onnx` file.
        role: What it is for; `None` where nothing says.
        inputs: Its inputs, without initializers.
        outputs: Its outputs.
        operators: Number of nodes by operator, most frequent first.
        functions: Number of nodes in each function's body, by qualified name.
        weights: Its initializers by ONNX name of their element type, the largest first.
        opset_imports: Version of each operator domain.
        ir_version: ONNX IR version of the file.
        producer: What wrote the file, as far as it says.
    """

    path: Path
    role: str | None
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    operators: Mapping[str, int]
    functions: Mapping[str, int]
    weights: Mapping[str, Weights]
    opset_imports: Mapping[str, int]
    ir_version: int
    producer: str | None


@dataclasses.dataclass(frozen=True)
class Inspection:
    """What `inspect_path` found.

    Attributes:
        path: What was inspected.
        graphs: The graphs by key; that of a single file is `model`.
        files: Size in bytes of each file of a folder, by its relative path.
        manifest: What `mobius.json` says; `None` for what Mobius has not built.
    """

    path: Path
    graphs: Mapping[str, GraphInspection]
    files: Mapping[str, int]
    manifest: Manifest | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        graphs = {
            key: {**dataclasses.asdict(graph), "path": str(graph.path)}
            for key, graph in self.graphs.items()
        }
        manifest = None if self.manifest is None else dataclasses.asdict(self.manifest)
        return {
            "path": str(self.path),
            "graphs": graphs,
            "files": dict(self.files),
            "manifest": manifest,
        }


def inspect_path(path: Path) -> Inspection:
    """Return what a package's folder, a folder with `model.onnx`, or an `.onnx` file holds.

    Data files need not be there: sizes are those that the graph states.

    Raises:
        ModelFileError: if there is no such model, or a graph cannot be read.
        PackageLoadError: (a `ValueError`) if a package's manifest is damaged.
    """
    manifest = read_manifest(path)
    named: dict[str, tuple[Path, str | None]]
    if manifest is None:
        named = {"model": (_single(path), None)}
    else:
        named = {key: (path / each.path, each.role) for key, each in manifest.models.items()}
    graphs = {key: _inspect_graph(file, role) for key, (file, role) in named.items()}
    files = {
        each.relative_to(path).as_posix(): each.stat().st_size
        for each in sorted(path.rglob("*"))
        if each.is_file()
    }
    return Inspection(path, graphs, files or {path.name: path.stat().st_size}, manifest)


def _single(path: Path) -> Path:
    if not path.is_dir():
        return path
    if (path / MODEL_NAME).is_file():
        return path / MODEL_NAME
    graphs = sorted(each.name for each in path.glob("*.onnx"))
    listed = f" It has {', '.join(graphs[:3])}: name one of them." if graphs else ""
    listed = listed or " Name a package's folder, or an .onnx file."
    if (path / "config.json").is_file() and not graphs:
        listed = " It looks like a checkpoint: `mobius build` makes a package of it."
    raise ModelFileError(f"{path} is neither a package nor has it {MODEL_NAME}.{listed}")


def _inspect_graph(path: Path, role: str | None) -> GraphInspection:
    model = read_model_file(path, with_data=False)
    initializers = set(model.graph.initializers)
    producer = " ".join(filter(None, (model.producer_name, model.producer_version)))
    return GraphInspection(
        path=path,
        role=role,
        inputs=_ports(value for value in model.graph.inputs if value.name not in initializers),
        outputs=_ports(model.graph.outputs),
        operators=dict(op_counts(model).most_common()),
        functions={
            f"{function.domain}::{function.name}": sum(1 for _ in function)
            for function in model.functions.values()
        },
        weights=_weights(model),
        opset_imports=dict(sorted(model.opset_imports.items())),
        ir_version=model.ir_version,
        producer=producer or None,
    )


def _ports(values: Iterable[ir.Value]) -> tuple[Port, ...]:
    return tuple(
        Port(
            str(value.name),
            None if value.dtype is None else value.dtype.name,
            None if value.shape is None else tuple(map(_dimension, value.shape)),
        )
        for value in values
    )


def _dimension(dim: int | ir.SymbolicDim) -> int | str | None:
    return dim if isinstance(dim, int) else dim.value


def _weights(model: ir.Model) -> dict[str, Weights]:
    found: dict[str, list[tuple[int, int]]] = collections.defaultdict(list)
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None:
                found[tensor.dtype.name].append((tensor.size, tensor.nbytes))
            elif value.dtype is not None and value.shape is not None and value.shape.is_static():
                elements = math.prod(value.shape.numpy())
                size = math.ceil(elements * value.dtype.bitwidth / 8)
                found[value.dtype.name].append((elements, size))
    counted = {
        name: Weights(len(sizes), sum(n for n, _ in sizes), sum(size for _, size in sizes))
        for name, sizes in found.items()
    }
    return dict(sorted(counted.items(), key=lambda item: -item[1].bytes))
