"""Kernel tables of ONNX Runtime's execution providers: a node in -> whether its EP has a kernel.

A table is a JSON file with rows `[domain, operator, since version, until version, types]`; see the
README beside the tables. Tests find them in `MOBIUS_KERNEL_TABLES`, or beside the repository.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

FOLDER = Path(
    os.environ.get(
        "MOBIUS_KERNEL_TABLES", Path(__file__).parents[2] / "shared" / "data" / "kernels"
    )
)
MICROSOFT = "com.microsoft"

# What onnx.defs does not know: type parameters of inputs, by position; the rest are "T".
_CONTRIB_INPUTS: Mapping[str, Mapping[int, str]] = {
    "GatherBlockQuantized": {0: "T1", 1: "Tind", 2: "T2", 3: "T1"},
    "GroupQueryAttention": {5: "M", 6: "M"},
    "MatMulNBits": {0: "T1", 1: "T2", 2: "T1", 3: "T3", 4: "T4", 5: "T1"},
    "QMoE": {
        **dict.fromkeys((2, 5, 8, 11, 12, 13), "T1"),
        **dict.fromkeys((3, 6, 9), "T2"),
    },
    "RotaryEmbedding": {1: "M"},
}
_SPELLED = {"FLOAT": "float", "DOUBLE": "double"}


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One row of a table; `types` maps a type parameter to the types that it may be."""

    since: int
    until: int | None
    types: Mapping[str, tuple[str, ...]]

    def is_of(self, since: int, *, open_ended: bool) -> bool:
        """Return whether the kernel serves the operator whose definition is of opset `since`.

        ONNX Runtime takes a kernel that is registered without an end for exactly the version that
        it starts at: it cannot know what a later definition changed. Plugins with claims of their
        own (`open_ended`) take later ones too.
        """
        if self.since == since:
            return True
        if self.until is None:
            return open_ended and self.since <= since
        return self.since <= since <= self.until


class KernelTable:
    """The kernels of one execution provider."""

    def __init__(self, path: Path) -> None:
        content = json.loads(path.read_text(encoding="utf-8"))
        self._claims = any("claim" in types for *_, types in content["kernels"])
        self._kernels: dict[tuple[str, str], list[Kernel]] = {}
        for row in content["kernels"]:
            domain, op_type, since, until, types = row
            if op_type == "K_ANY_OPSET":  # the plugin's source names such an operator first
                domain, op_type = "ai.onnx", domain
            allowed = {} if self._claims else {key: tuple(each) for key, each in types.items()}
            key = ("" if domain == "ai.onnx" else domain, op_type)
            self._kernels.setdefault(key, []).append(Kernel(since, until, allowed))

    def knows(self, domain: str, op_type: str) -> bool:
        """Return whether there is a kernel of the operator in any version and type."""
        return (domain, op_type) in self._kernels

    def runs(self, use: Use) -> bool:
        """Return whether there is a kernel for a use of an operator."""
        return any(
            kernel.is_of(use.since, open_ended=self._claims)
            and all(
                dtype in kernel.types.get(parameter, (dtype,))
                for parameter, dtype in use.types.items()
            )
            for kernel in self._kernels.get((use.domain, use.op_type), [])
        )


@dataclasses.dataclass(frozen=True)
class Use:
    """What a kernel is chosen by."""

    node: str
    domain: str
    op_type: str
    since: int
    types: Mapping[str, str]

    @property
    def shown(self) -> str:
        """A short name, such as `Cast-21(T1=int64, T2=bool)`."""
        types = ", ".join(f"{key}={value}" for key, value in sorted(self.types.items()))
        return f"{self.domain and 'ms:'}{self.op_type}-{self.since}({types})"

    def retyped(self, before: str, after: str) -> Use:
        """Return the same use with one type in place of another."""
        return dataclasses.replace(
            self,
            types={key: after if each == before else each for key, each in self.types.items()},
        )


def tables() -> dict[str, KernelTable]:
    """Return the tables by the name of the execution provider; empty where there are none."""
    return {path.name.split("-")[0]: KernelTable(path) for path in sorted(FOLDER.glob("*.json"))}


def uses(model: ir.Model) -> Iterator[Use]:
    """Yield how each node of a model uses its operator, subgraphs included.

    Raises:
        AssertionError: if a value has no dtype, or two dtypes meet in one type parameter.
    """
    opset = model.opset_imports[""]
    for node in model.graph.all_nodes():
        if node.domain == "":
            schema = onnx.defs.get_schema(node.op_type, opset, "")
            formal = _standard_types(node, schema)
            yield Use(str(node.name), "", node.op_type, schema.since_version, formal)
        else:
            yield Use(str(node.name), node.domain, node.op_type, 1, _contrib_types(node))


def _standard_types(node: ir.Node, schema: Any) -> dict[str, str]:
    parameters = {constraint.type_param_str for constraint in schema.type_constraints}
    found: dict[str, str] = {}
    for values, formals in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        for index, value in enumerate(values):
            formal = formals[min(index, len(formals) - 1)]
            if value is None or value.name == "" or formal.type_str not in parameters:
                continue
            if formal.option == onnx.defs.OpSchema.FormalParameterOption.Variadic and (
                not formal.is_homogeneous
            ):
                continue
            _add(found, formal.type_str, value, node)
    return found


def _contrib_types(node: ir.Node) -> dict[str, str]:
    found: dict[str, str] = {}
    named = _CONTRIB_INPUTS.get(node.op_type, {})
    for index, value in enumerate(node.inputs):
        if value is not None:
            _add(found, named.get(index, "T"), value, node)
    return found


def _add(found: dict[str, str], parameter: str, value: ir.Value, node: ir.Node) -> None:
    assert value.dtype is not None, f"{value.name} of {node.name} has no dtype"
    spelled = _SPELLED.get(value.dtype.name, value.dtype.name.lower())
    assert found.setdefault(parameter, spelled) == spelled, (
        f"{node.op_type} {node.name}: {parameter} is {found[parameter]} and {spelled}"
    )
