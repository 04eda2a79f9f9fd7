"""`CallBody`: a body made for one form of call of an operator whose calls differ in structure.

A function body cannot ask which optional inputs a call gave, and a text attribute cannot choose
between nodes. For an operator of which that decides everything (`GroupQueryAttention`, `MoE`), one
body for all calls does not exist. So its row of the table reads a call into a **form** (a frozen
dataclass: which inputs are given, the values of attributes), and makes the body of that form.
Calls of one form share a body; `AttachFunctions` says what it does where a model has several.

A form that has no body is refused with the reason: `RefusedError`, as rules do.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from mobius_ir_rules.functions.body import make_function
from mobius_ir_rules.rule import refuse
from mobius_ir_rules.values import describe_node, input_at, is_used, output_at


class CallBody:
    """A row of `FUNCTIONS` that needs to see the call.

    Attributes:
        read: Returns the form of a call, hashable; raises `RefusedError` where no body has it.
        build: Makes the body of a form for an opset.
    """

    def __init__(
        self,
        read: Callable[[ir.Node], Hashable],
        build: Callable[[Any, int], ir.Function],
    ) -> None:
        """Create the row."""
        self.read = read
        self.build = build

    def __call__(self, opset_version: int) -> ir.Function:
        """Refuse: there is no body without a call.

        Raises:
            TypeError: Always; `for_call` makes a body.
        """
        raise TypeError(
            f"A body for opset {opset_version} cannot be made without the call that it is for: "
            "use for_call(node, opset_version)."
        )

    def for_call(self, node: ir.Node, opset_version: int) -> ir.Function:
        """Return the body of the call `node`.

        Raises:
            RefusedError: If no body computes the call.
            ValueError: If the opset is older than bodies are written for.
        """
        return self.build(self.read(node), opset_version)


def given_inputs(node: ir.Node, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the inputs that the call gives, in the order of the schema `names`.

    Raises:
        RefusedError: If the call has more inputs than the schema.
    """
    if len(node.inputs) > len(names):
        refuse(
            f"{describe_node(node)} has {len(node.inputs)} inputs; at most {len(names)} are known.",
            node,
        )
    return tuple(name for index, name in enumerate(names) if input_at(node, index) is not None)


def require_inputs(node: ir.Node, given: Sequence[str], needed: Sequence[str]) -> None:
    """Refuse a call that lacks one of the inputs `needed`."""
    for name in needed:
        if name not in given:
            refuse(f"{describe_node(node)} lacks the input '{name}'; it is needed.", node)


def refuse_inputs(node: ir.Node, given: Sequence[str], unsupported: Sequence[str]) -> None:
    """Refuse a call that gives one of the inputs `unsupported`."""
    for name in unsupported:
        if name in given:
            refuse(
                f"{describe_node(node)} has the input '{name}'; the body computes the operator "
                "without it.",
                node,
            )


def refuse_outputs(node: ir.Node, names: Sequence[str], unsupported: Sequence[str]) -> None:
    """Refuse a call of which an output in `unsupported` is used; `names` are the schema's."""
    for name in unsupported:
        if is_used(output_at(node, names.index(name))):
            refuse(
                f"The output '{name}' of {describe_node(node)} is used; the body does not "
                "compute it.",
                node,
            )


def refuse_attributes(node: ir.Node, neutral: Mapping[str, int | str]) -> None:
    """Refuse a call with an attribute that has another value than the `neutral` one."""
    for name, value in neutral.items():
        attribute = node.attributes.get(name)
        if attribute is not None and (attribute.is_ref() or _value(attribute) != value):
            found = "a reference" if attribute.is_ref() else repr(_value(attribute))
            refuse(
                f"{describe_node(node)} has {name}={found}; the body computes the operator with "
                f"{value!r} only.",
                node,
            )


def _value(attribute: ir.Attr) -> object:
    if attribute.type == ir.AttributeType.STRING:
        return attribute.as_string()
    return attribute.value


def make_call_body(
    identifier: tuple[str, str],
    names: Sequence[str],
    given: Sequence[str],
    outputs: Sequence[str],
    attributes: Sequence[ir.Attr],
    body: Callable[..., Any],
    opset_version: int,
) -> ir.Function:
    """Return the function of one form, traced from `body(op, inputs)`.

    Args:
        identifier: Domain and name of the operator.
        names: Names of all inputs in the operator's schema.
        given: Those that the call gives. The formal inputs are `names` up to the last of them, so
            that each stands where the call has it; those left out are formal inputs that nothing
            reads.
        outputs: Names of the outputs that the call lists.
        attributes: What the form says of the operator's attributes. The body holds the values
            already; they are declared because a caller spells them out.
        body: Called with an `OpBuilder` and a mapping from name to value of the given inputs;
            returns one value per output.
        opset_version: Version of the standard operators, that of the model.
    """
    last = max(names.index(name) for name in given)
    formals = list(names[: last + 1])

    def traced(op: Any, *values: ir.Value) -> Any:
        inputs = {name: value for name, value in zip(formals, values, strict=True) if name in given}
        return body(op, inputs)

    return make_function(identifier, formals, outputs, attributes, traced, opset_version)
