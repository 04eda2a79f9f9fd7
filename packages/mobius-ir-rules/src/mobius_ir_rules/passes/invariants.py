"""`check_model_invariants`: a finished model -> an error that lists everything wrong with it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import onnx_ir as ir

from mobius_ir_rules.passes.graphs import (
    GraphLike,
    all_nodes,
    graph_attributes,
    roots,
    values_found_by_name,
    values_of,
)
from mobius_ir_rules.passes.unused import used_domains


class InvariantError(ValueError):
    """A model is not what was promised; the message lists each problem on its own line."""


def check_model_invariants(
    model: ir.Model,
    *,
    allowed_domains: Collection[str] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> None:
    """Check names, scopes, domains and opset imports, without reading any weight.

    Args:
        model: The model; not changed.
        allowed_domains: Domains that nodes of the main graph and its subgraphs, and of bodies
            that stay, may have unless a model-local function defines the operator. None: any.
        input_names: The inputs that the model must have, in order. None: any.
        output_names: The outputs that the model must have, in order. None: any.

    Raises:
        InvariantError: If anything is wrong.
    """
    problems = [
        *_interface("inputs", model.graph.inputs, input_names),
        *_interface("outputs", model.graph.outputs, output_names),
    ]
    for root in roots(model):
        where = "the graph" if root is model.graph else f"function {_qualified(root)}"
        problems += (f"{problem} in {where}" for problem in _check_root(root, model))
        if allowed_domains is not None:
            problems += (
                f"node {node.name!r} in {where} is {_qualified(node)}, and neither is its domain "
                f"one of {sorted(allowed_domains)} nor does the model define the operator"
                for node in all_nodes(root)
                if node.domain not in allowed_domains
                and node.op_identifier() not in model.functions
            )
    if problems:
        raise InvariantError("The model is invalid:\n- " + "\n- ".join(problems))


class CheckInvariants(ir.passes.InPlacePass):
    """`check_model_invariants` as a pass; changes nothing.

    Raises:
        InvariantError: If anything is wrong.
    """

    def __init__(
        self,
        allowed_domains: Collection[str] | None = None,
        input_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
    ) -> None:
        """Configure the pass; see `check_model_invariants`."""
        super().__init__()
        self._arguments = (allowed_domains, input_names, output_names)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass."""
        domains, inputs, outputs = self._arguments
        check_model_invariants(
            model, allowed_domains=domains, input_names=inputs, output_names=outputs
        )
        return ir.passes.PassResult(model, False)


def _interface(
    kind: str, values: Sequence[ir.Value], expected: Sequence[str] | None
) -> Iterator[str]:
    names = [value.name for value in values]
    if expected is not None and names != list(expected):
        yield f"the {kind} are {names}, declared were {list(expected)}"


def _check_root(root: GraphLike | ir.Function, model: ir.Model) -> Iterator[str]:
    yield from _check_imports(root, model)
    # Two objects of one name are wrong even in sibling branches: tools that inline break there.
    # Where an operator finds them by name, equal names are its business: those of two of its
    # subgraphs, and those that the graph around uses for its own inputs and outputs.
    bound = {id(value): value for value in values_found_by_name(root)}
    names = [value.name for value in values_of(root) if value.name and id(value) not in bound]
    outer = {value.name for value in (*root.inputs, *root.outputs)}
    names += sorted({value.name for value in bound.values() if value.name} - outer)
    yield from _repeated("value", names)
    yield from _repeated("node", [node.name for node in all_nodes(root) if node.name])
    yield from _check_scope(root, set())


def _check_imports(root: GraphLike, model: ir.Model) -> Iterator[str]:
    used = used_domains(root)
    optional = {""}
    if root is model.graph:
        optional |= {function.domain for function in model.functions.values()}
    for domain in sorted(used - set(root.opset_imports)):
        yield f"no opset import for the domain {domain!r} of a node"
    for domain in sorted(set(root.opset_imports) - used - optional):
        yield f"an opset import for the domain {domain!r} that no node has"


def _repeated(kind: str, names: list[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield f"the {kind} name {name!r} twice"
        seen.add(name)


def _check_scope(graph: GraphLike, outer: set[int]) -> Iterator[str]:
    """Check that each value read is defined before, here or in an enclosing graph."""
    defined = {id(value) for value in graph.inputs} | outer
    if isinstance(graph, ir.Graph):
        defined |= {id(value) for value in graph.initializers.values()}
    for node in graph:
        for value in node.inputs:
            if value is not None and id(value) not in defined:
                yield f"node {node.name!r} reads {value.name!r}, which nothing before it defines"
        for subgraph in graph_attributes(node):
            yield from _check_scope(subgraph, defined)
        defined |= {id(value) for value in node.outputs}
    for value in graph.outputs:
        if id(value) not in defined:
            yield f"the output {value.name!r} is not defined"


def _qualified(item: ir.Node | ir.Function | GraphLike) -> str:
    if isinstance(item, ir.Node):
        return f"{item.domain or 'ai.onnx'}::{item.op_type}"
    return f"{item.domain}::{item.name}" if isinstance(item, ir.Function) else str(item.name)
