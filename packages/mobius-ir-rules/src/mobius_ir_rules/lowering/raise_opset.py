"""`RaiseOpset(version)`: a model written for an older opset -> the same one, for a newer opset.

Fusions make operators that came late: Attention, RMSNormalization and RotaryEmbedding in opset 23,
Gelu in 20. A model of an older opset gets none of them until it is raised.

ONNX's own `onnx.version_converter` is not used: it writes all weights into one protobuf, leaves
subgraphs and functions as they are, and raises operators without looking at what changed. Here an
operator is raised if its definition is the same, read from ONNX's schemas, if it is known to be
extended only (`opset_changes`), or by an adapter below. Anything else is refused by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from mobius_ir_rules.lowering.opset import OpsetError
from mobius_ir_rules.lowering.opset_changes import (
    FURTHER_FEATURES,
    NEWEST_SOURCE,
    REDUCTIONS,
    TYPES_ONLY,
    schema_at,
)
from mobius_ir_rules.passes.graphs import (
    GraphLike,
    all_nodes,
    roots,
    subgraphs,
    unique_name,
    value_names,
)
from mobius_ir_rules.passes.opset_imports import CompleteOpsetImports
from mobius_ir_rules.refusal import Refusal
from mobius_ir_rules.values import describe_node, input_at, node_name

OLDEST_SOURCE = 13
"""The oldest opset whose changes are known here."""

IR_VERSION = 10
"""Version of the format that a raised model has at least: the one that came with opset 21."""

_STANDARD = ("", "ai.onnx")

_MORE_TYPES = """
    Add CumSum Div GreaterOrEqual LeakyRelu LessOrEqual Mul PRelu Pow Relu Sub Where
"""
MORE_TYPES = frozenset(_MORE_TYPES.split())
"""Changed from opset 13 to 17 by further types only, and not since."""

EXTENDED = (TYPES_ONLY | FURTHER_FEATURES | MORE_TYPES) - {"RoiAlign", "Split"}
"""Operators that do, as they were written for opset 13 or later, the same at a newer opset.

What they gained since is types, and inputs and attributes that say by default what was done before
(`layout` of LSTM, `allowzero` of Reshape, `start` and `end` of Shape).
"""


_BEFORE_ONNX = frozenset({"LayerNormalization"})
"""Operators that ONNX Runtime had in the standard domain before ONNX, defined alike."""


class RaiseOpset(ir.passes.InPlacePass):
    """Take a model, its subgraphs and functions to a newer opset of ONNX.

    Nodes of other domains are not looked at, and a graph or function of that opset or a newer one
    is left alone. Nothing is computed, and no weight is read.

    Raises:
        OpsetError: If a node cannot be raised; it names each such node. Nothing was changed.
    """

    def __init__(self, version: int) -> None:
        """Configure the pass.

        Raises:
            ValueError: If `version` is not one that the pass can raise to.
        """
        super().__init__()
        if not OLDEST_SOURCE < version <= NEWEST_SOURCE:
            raise ValueError(
                f"version is {version}; one from {OLDEST_SOURCE + 1} to {NEWEST_SOURCE} is needed."
            )
        self._version = version

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass."""
        found = obstacles(model, self._version)
        if found:
            raise OpsetError(source_opset(model) or 0, self._version, found)
        completed = CompleteOpsetImports()(model).modified
        raised = [_raise(root, self._version) for root in roots(model)]
        if not any(raised):
            return ir.passes.PassResult(model, completed)
        model.ir_version = max(model.ir_version or 0, IR_VERSION)
        return ir.passes.PassResult(model, True)


def obstacles(model: ir.Model, version: int) -> list[Refusal]:
    """Return what keeps the model from opset `version`, changing nothing.

    Where a graph or function is older than anything known here, that is its first node.
    """
    of_model = source_opset(model) or version
    found: list[Refusal] = []
    for root in roots(model):
        source = _imported(root) or of_model
        if source >= version:
            continue
        for node in all_nodes(root):
            reason = _obstacle(node, source, version) if node.domain in _STANDARD else None
            if reason is not None:
                name = RaiseOpset.__name__
                found.append(Refusal(name, node_name(node), node.op_type, reason))
                if source < OLDEST_SOURCE:
                    break
    return found


def source_opset(model: ir.Model) -> int | None:
    """Return the opset that the model is written for, `None` where it does not say."""
    return _imported(model.graph)


def _imported(root: GraphLike) -> int | None:
    versions = (root.opset_imports.get(domain) for domain in _STANDARD)
    return next((version for version in versions if version is not None), None)


def _raise(root: GraphLike, version: int) -> bool:
    source = root.opset_imports.get("")
    if source is None or source >= version:
        return False
    taken = value_names(root)
    for node in list(all_nodes(root)):
        adapter = ADAPTERS.get(node.op_type)
        if node.domain == "" and adapter is not None and source < adapter.changed <= version:
            adapter.write(node, taken)
    for graph in (root, *subgraphs(root)):
        if "" in graph.opset_imports:
            graph.opset_imports[""] = version
    return True


def _obstacle(node: ir.Node, source: int, target: int) -> str | None:
    """Return a full sentence why the node would not mean the same at opset `target`."""
    if source < OLDEST_SOURCE:
        return (
            f"{describe_node(node)} and others are written for opset {source}; {OLDEST_SOURCE} or "
            "later is needed, because what changed before is not known here."
        )
    old, new = schema_at(node.op_type, source), schema_at(node.op_type, target)
    if old is None and new is not None and node.op_type in _BEFORE_ONNX:
        return None
    if old is None:
        return f"{describe_node(node)} is no operator of opset {source}."
    if new is None:
        return f"{describe_node(node)} is no operator of opset {target} any more."
    if old.since_version == new.since_version:
        return None
    adapter = ADAPTERS.get(node.op_type)
    if adapter is not None:
        return adapter.obstacle(node) if source < adapter.changed <= target else None
    if node.op_type in EXTENDED:
        return None
    return (
        f"The definition of {node.op_type} changed in opset {new.since_version}; one that holds "
        f"from opset {source} on is needed."
    )


@dataclasses.dataclass(frozen=True)
class Adapter:
    """How an operator, of which the form changed once, is written after the change.

    Attributes:
        changed: The opset of the change.
        obstacle: Returns why a node cannot be written so, `None` where it can.
        write: Writes the node so; gets the names that values have, and adds those of new ones.
    """

    changed: int
    obstacle: Callable[[ir.Node], str | None]
    write: Callable[[ir.Node, set[str]], None]


def _nothing(node: ir.Node) -> str | None:
    del node
    return None


def _axes_are_known(node: ir.Node) -> str | None:
    axes = node.attributes.get("axes")
    if axes is not None and axes.is_ref():
        return (
            f"The axes of {describe_node(node)} are an attribute of the enclosing function; known "
            "ones are needed, because they are an input from opset 18 on."
        )
    return None


def _axes_to_input(node: ir.Node, taken: set[str]) -> None:
    axes = node.attributes.pop("axes", None)
    if axes is None:
        return
    numbers = list(axes.as_ints())
    tensor = ir.tensor(numbers, dtype=ir.DataType.INT64)
    constant = ir.node("Constant", [], {"value": tensor})
    value = constant.outputs[0]
    value.name = unique_name(f"{node_name(node)}_axes", taken)
    value.type, value.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([len(numbers)])
    node.prepend(constant)
    node.resize_inputs(2)
    node.replace_input_with(1, value)


def _count_parts(node: ir.Node, taken: set[str]) -> None:
    """Say in how many parts; until opset 18 no sizes meant equal parts."""
    del taken
    if input_at(node, 1) is None:
        node.attributes.add(ir.AttrInt64("num_outputs", len(node.outputs)))


def _infers_only(node: ir.Node) -> str | None:
    """Before opset 14 further outputs meant training."""
    if len(node.outputs) > 1:
        return (
            f"{describe_node(node)} has {len(node.outputs)} outputs; one is needed, because "
            "training has others from opset 14 on."
        )
    return None


def _keep_half_pixels(node: ir.Node, taken: set[str]) -> None:
    """Say where pixels are; until opset 16 it was what is no longer the default."""
    del taken
    name = "coordinate_transformation_mode"
    node.attributes.add(ir.AttrString(name, "output_half_pixel"))


def _leave(node: ir.Node, taken: set[str]) -> None:
    del node, taken


ADAPTERS: Mapping[str, Adapter] = MappingProxyType(
    {
        **dict.fromkeys(REDUCTIONS, Adapter(18, _axes_are_known, _axes_to_input)),
        "BatchNormalization": Adapter(14, _infers_only, _leave),
        "RoiAlign": Adapter(16, _nothing, _keep_half_pixels),
        "Split": Adapter(18, _nothing, _count_parts),
    }
)
"""Operators that are written otherwise from an opset on; what else changed in them are types."""
