"""`AttachFunctions`: a model with calls of custom operators -> the same model carrying bodies."""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping

import onnx_ir as ir

from mobius_ir_rules.functions import FUNCTIONS
from mobius_ir_rules.functions.body import OLDEST_OPSET
from mobius_ir_rules.functions.calls import CallBody
from mobius_ir_rules.match_log import Refusal
from mobius_ir_rules.passes.graphs import (
    GraphLike,
    all_nodes,
    roots,
    unique_name,
    value_names,
)
from mobius_ir_rules.rule import RefusedError
from mobius_ir_rules.values import describe_node, node_name

logger = logging.getLogger(__name__)

Builder = Callable[[int], ir.Function]
Calls = Mapping[tuple[str, str], list[ir.Node]]


@dataclasses.dataclass
class AttachResult(ir.passes.PassResult):
    """Result of `AttachFunctions`.

    Attributes:
        refusals: The calls that a body does not fit; their operators got no body.
    """

    refusals: tuple[Refusal, ...] = ()


class AttachFunctions(ir.passes.InPlacePass):
    """Gives each operator of a table that the model calls its model-local function.

    Calls are found in the graph, in subgraphs and in functions, those of attached bodies included.
    A function that the model has already stays; calls that fit it are written out all the same.
    A body is written for the model's opset, and each graph or function that calls it imports its
    domain.

    A function has one body for all its calls, and the body cannot ask which inputs a call gave.
    So where one call of an operator does not fit the body (omitted or further inputs, further
    outputs, an attribute that the body does not know), the operator gets no body: it is logged,
    and is in the result's `refusals`.

    A `CallBody` of the table makes the body for the form of a call. Where calls of an operator
    have several forms, the first one's body would be wrong for the others. With `overloads`, each
    further form gets an overload of the function, and its calls name it: right for those who
    expand the functions at once, and for nobody else, because runtimes look operators up without
    overloads. Without, the operator gets no body.

    Calls that fit are written out in full, because consumers of functions differ in what they
    make up for: all outputs are listed, unused ones with an empty name (except the first, and the
    last, because a trailing empty name is dropped in writing), and attributes left out get the
    defaults of the operator.
    """

    def __init__(
        self,
        functions: Mapping[tuple[str, str], Builder] = FUNCTIONS,
        *,
        overloads: bool = False,
        log_level: int = logging.WARNING,
    ) -> None:
        """Create the pass.

        Args:
            functions: Maps (domain, name) to a builder of the body.
            overloads: Whether calls of different forms get overloads of their function. For
                functions that are inlined next.
            log_level: At what level an operator without a body is logged: a warning where somebody
                needs the body, less where the target has a kernel.
        """
        super().__init__()
        self._functions = functions
        self._overloads = overloads
        self._log_level = log_level

    def call(self, model: ir.Model) -> AttachResult:
        """Attach the bodies."""
        modified = False
        refused: list[Refusal] = []
        seen: set[tuple[str, str]] = set()
        while waiting := {
            key: nodes for key, nodes in self._calls(model).items() if key not in seen
        }:
            for key, nodes in waiting.items():
                seen.add(key)
                present = model.functions.get((*key, ""))
                if isinstance(self._functions[key], CallBody):
                    if present is not None:
                        continue
                    attached, misfits = self._attach_forms(model, key, nodes)
                    modified |= attached
                    refused.extend(misfits)
                    continue
                if present is not None:
                    fitting = [node for node in nodes if _misfit(node, present) is None]
                    modified |= _complete_all(model, fitting, present)
                    continue
                attached, misfits = self._attach(model, key, nodes)
                modified |= attached
                refused.extend(misfits)
        for refusal in refused:
            logger.log(self._log_level, "No function body for %s", refusal)
        return AttachResult(model, modified=modified, refusals=tuple(refused))

    def _calls(self, model: ir.Model) -> Calls:
        """Return the calls of operators in the table, by operator."""
        calls: dict[tuple[str, str], list[ir.Node]] = collections.defaultdict(list)
        for _, node in _nodes(model):
            if (node.domain, node.op_type) in self._functions and not node.overload:
                calls[node.domain, node.op_type].append(node)
        return calls

    def _attach(
        self, model: ir.Model, key: tuple[str, str], nodes: list[ir.Node]
    ) -> tuple[bool, list[Refusal]]:
        """Attach one body unless a call does not fit it; say what was done, what did not fit."""
        opset_version = model.opset_imports.get("", 0)
        if opset_version < OLDEST_OPSET:
            return False, [_refusal(node, _too_old(opset_version)) for node in nodes]
        function = self._functions[key](opset_version)
        misfits = [
            _refusal(node, reason)
            for node in nodes
            if (reason := _misfit(node, function)) is not None
        ]
        if misfits:
            return False, misfits
        _complete_all(model, nodes, function)
        _import_domain(model, key)
        model.functions[function.identifier()] = function
        return True, []

    def _attach_forms(
        self, model: ir.Model, key: tuple[str, str], nodes: list[ir.Node]
    ) -> tuple[bool, list[Refusal]]:
        """Attach a body for each form of call; say what was done, what has no body."""
        builder = self._functions[key]
        assert isinstance(builder, CallBody)
        opset_version = model.opset_imports.get("", 0)
        if opset_version < OLDEST_OPSET:
            return False, [_refusal(node, _too_old(opset_version)) for node in nodes]
        forms: dict[Hashable, list[ir.Node]] = collections.defaultdict(list)
        misfits: list[Refusal] = []
        for node in nodes:
            try:
                forms[builder.read(node)].append(node)
            except RefusedError as error:
                misfits.append(_refusal(node, error.reason))
        if not self._overloads:
            if not misfits:
                misfits = [
                    _refusal(
                        others[0],
                        f"{describe_node(others[0])} has another form than "
                        f"{describe_node(next(iter(forms.values()))[0])}; one for all is needed, "
                        "because an operator has one body.",
                    )
                    for others in list(forms.values())[1:]
                ]
            if misfits:
                return False, misfits
        modified = False
        for number, (form, calls) in enumerate(forms.items(), start=1):
            function = builder.build(form, opset_version)
            if number > 1:
                function.overload = str(number)
            elif misfits:
                # The plain name stays with the calls that have no body.
                function.overload = "1"
            for node in calls:
                node.overload = function.overload
                _drop_trailing(node)
            model.functions[function.identifier()] = function
            modified = True
        if modified:
            _import_domain(model, key)
        return modified, misfits


def _too_old(opset_version: int) -> str:
    return (
        f"The model imports opset {opset_version} of ONNX; bodies are written for "
        f"{OLDEST_OPSET} and later."
    )


def _drop_trailing(node: ir.Node) -> None:
    """Drop omitted inputs at the end: a function has no formal inputs for them."""
    count = len(node.inputs)
    while count and node.inputs[count - 1] is None:
        count -= 1
    node.resize_inputs(count)


def _import_domain(model: ir.Model, key: tuple[str, str]) -> None:
    """Import the operator's domain wherever it is called."""
    for container, node in list(_nodes(model)):
        if (node.domain, node.op_type) == key:
            container.opset_imports.setdefault(key[0], 1)
            # Loaders look at the model's imports for what its functions call, too.
            model.opset_imports.setdefault(key[0], 1)


def _nodes(model: ir.Model) -> Iterator[tuple[GraphLike, ir.Node]]:
    """Yield every node with the graph or function whose imports hold for it."""
    for container in roots(model):
        for node in all_nodes(container):
            yield container, node


def _refusal(node: ir.Node, reason: str) -> Refusal:
    return Refusal("AttachFunctions", node_name(node), f"{node.domain}::{node.op_type}", reason)


def _misfit(node: ir.Node, function: ir.Function) -> str | None:
    """Return why the body does not compute this call, a full sentence, or `None`."""
    given = [value is not None for value in node.inputs]
    while given and not given[-1]:
        given.pop()
    names = [str(value.name) for value in function.inputs]
    if len(given) != len(names) or not all(given):
        return (
            f"{describe_node(node)} has {sum(given)} inputs; the body needs "
            f"{len(names)} ({', '.join(names)}), none omitted."
        )
    if len(node.outputs) > len(function.outputs):
        return (
            f"{describe_node(node)} has {len(node.outputs)} outputs; the body has "
            f"{len(function.outputs)}."
        )
    for attribute in node.attributes:
        if attribute not in function.attributes:
            return (
                f"{describe_node(node)} has the attribute '{attribute}'; the body has only "
                f"{sorted(function.attributes)}."
            )
    for attribute, declared in function.attributes.items():
        if declared.value is None and attribute not in node.attributes:
            return f"{describe_node(node)} lacks the attribute '{attribute}' that the body needs."
    return None


def _complete_all(model: ir.Model, nodes: list[ir.Node], function: ir.Function) -> bool:
    """Complete each call; return whether one was not complete."""
    taken = {name for root in roots(model) for name in value_names(root)}
    return any([_complete(node, function, taken) for node in nodes])


def _complete(node: ir.Node, function: ir.Function, taken: set[str]) -> bool:
    """List all outputs and spell out the defaults of attributes; return whether any lacked."""
    before = [value.name for value in node.outputs], len(node.attributes)
    node.resize_outputs(len(function.outputs))
    for value in node.outputs[1:-1]:
        if not value.uses() and not value.is_graph_output():
            value.name = ""
    last = node.outputs[-1]
    if not last.name:
        last.name = unique_name(f"{node_name(node)}_{function.outputs[-1].name}", taken)
    for name, declared in function.attributes.items():
        if name not in node.attributes:
            node.attributes.add(declared)
    return before != ([value.name for value in node.outputs], len(node.attributes))
