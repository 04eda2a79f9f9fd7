"""`RepeatingBuilder`: a `GraphBuilder` that works out each form of a node once.

The layers of a model are alike: of thousands of nodes, a few dozen differ in more than names. What
onnxscript's builder finds out for a node (its schema, which arguments are attributes, constants
for Python numbers, types and shapes of outputs) is remembered by what it depends on, and the next
node of that form is made from it. The graph is the same, names and metadata included.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import GraphBuilder

# Shape inference reads the data of constants up to this size.
_READ_BY_INFERENCE = 20


@dataclasses.dataclass(frozen=True)
class _Form:
    """A node to be made again.

    Attributes:
        inputs: Its inputs; those that are given anew are replaced.
        attributes: Its attributes, which are immutable.
        outputs: Element type and shape of each output.
    """

    inputs: tuple[ir.Value | None, ...]
    attributes: tuple[ir.Attr, ...]
    outputs: tuple[tuple[ir.DataType, ir.Shape | None], ...]


@dataclasses.dataclass(frozen=True)
class _Scope:
    """What the modules around a node give to it."""

    value_prefix: str
    node_prefix: str
    metadata: dict[str, str]


class RepeatingBuilder(GraphBuilder):
    """Builds the graph that `GraphBuilder` builds, at a cost of its distinct nodes."""

    def __init__(self, graph: ir.Graph) -> None:
        """Create the builder of a graph that has an import of `""`."""
        super().__init__(graph)
        self._forms: dict[Hashable, _Form | None] = {}
        self._modules: list[tuple[str, str]] = []
        self._scope: _Scope | None = None

    def push_module(self, module: str, class_name: str = "") -> None:
        """Enter a module."""
        super().push_module(module, class_name)
        self._modules.append((module, class_name))
        self._scope = None

    def pop_module(self) -> None:
        """Leave the innermost module."""
        super().pop_module()
        self._modules.pop()
        self._scope = None

    def call_op(
        self,
        op_type: str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        /,
        domain: str = "",
        version: int | None = None,
        outputs: int | Sequence[str | ir.Value] = 1,
        name: str | None = None,
    ) -> Any:
        """Make a node; see `GraphBuilder.call_op`."""
        key = None
        if name is None and isinstance(outputs, int):
            described = _describe(args, kwargs)
            key = None if described is None else (op_type, domain, version, outputs, described)
        form = self._forms.get(key) if key is not None else None
        if form is not None:
            return self._repeat(form, op_type, args, domain, version)
        made = super().call_op(
            op_type, args, kwargs, domain=domain, version=version, outputs=outputs, name=name
        )
        if key is not None and key not in self._forms:
            self._forms[key] = _form(made if isinstance(made, ir.Value) else made[0], args)
        return made

    def _repeat(
        self, form: _Form, op_type: str, args: Sequence[Any], domain: str, version: int | None
    ) -> Any:
        scope = self._scope = self._scope or _scope(self._modules)
        count = self.graph.num_nodes()
        name = f"{scope.value_prefix}{op_type}_{count}"
        several = len(form.outputs) > 1
        values = [
            ir.Value(
                name=f"{name}_{index}" if several else name,
                type=ir.TensorType(dtype),
                shape=None if shape is None else shape.copy(),
            )
            for index, (dtype, shape) in enumerate(form.outputs)
        ]
        inputs = list(form.inputs)
        for index, value in enumerate(args):
            if isinstance(value, ir.Value):
                inputs[index] = value
        node = ir.Node(
            domain,
            op_type,
            inputs,
            attributes=form.attributes,
            outputs=values,
            version=version,
            name=f"{scope.node_prefix}{op_type}_node_{count}",
            metadata_props=dict(scope.metadata),
        )
        self.graph.append(node)
        return node.outputs if several else node.outputs[0]


def _scope(modules: Sequence[tuple[str, str]]) -> _Scope:
    names = [name for name, _ in modules if name]
    shown = [f"{name}: {kind}" if kind else name for name, kind in modules if name or kind]
    return _Scope(
        value_prefix=".".join(["v_" + names[0], *names[1:], ""]) if names else "v_",
        node_prefix="/".join([*names, ""]),
        metadata={
            "namespace": "/".join(shown),
            "pkg.onnxscript.class_hierarchy": repr([kind for _, kind in modules]),
            "pkg.onnxscript.name_scopes": repr([name for name, _ in modules]),
        },
    )


def _describe(args: Sequence[Any], kwargs: dict[str, Any]) -> Hashable | None:
    """Return what a node's form depends on; `None` where it may depend on more."""
    described: list[Hashable] = []
    for value in args:
        if isinstance(value, ir.Value):
            constant = value.const_value
            if constant is not None and constant.size <= _READ_BY_INFERENCE:
                described.append(value)
            elif isinstance(value.type, ir.TensorType):
                shape = value.shape
                described.append((value.type.dtype, None if shape is None else shape.dims))
            else:
                return None
        elif value is None:
            described.append(None)
        else:
            literal = _literal(value)
            if literal is None:
                return None
            described.append(literal)
    for name, value in kwargs.items():
        literal = _literal(value)
        if literal is None:
            return None
        described.append((name, literal))
    return tuple(described)


def _literal(value: Any) -> Hashable | None:
    """Return a key of a Python number, text or list, by type and bits, `None` for others."""
    kind = type(value)
    if kind is int or kind is str or kind is bool:
        return kind, value
    if kind is float:
        return kind, value, math.copysign(1.0, value)
    if kind is list or kind is tuple:
        items = tuple(_literal(item) for item in value)
        return None if None in items else (kind, items)
    return None


def _form(first: ir.Value, args: Sequence[Any]) -> _Form | None:
    """Return how to make the node of `first` again, `None` where that is more than one node."""
    node = first.producer()
    if node is None or "pkg.onnxscript.shape_inference_error" in node.metadata_props:
        return None
    if len(node.inputs) < len(args):
        return None
    for index, used in enumerate(node.inputs):
        given = args[index] if index < len(args) else None
        own = isinstance(given, ir.Value) or given is None
        # A number has become an initializer; a cast of one is a further node.
        if used is not given if own else used is None or not used.is_initializer():
            return None
    outputs = []
    for value in node.outputs:
        if value.const_value is not None or not isinstance(value.type, ir.TensorType):
            return None
        outputs.append((value.type.dtype, None if value.shape is None else value.shape.copy()))
    return _Form(tuple(node.inputs), tuple(node.attributes.values()), tuple(outputs))
