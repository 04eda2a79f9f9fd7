"""`misfit(node, source, target)`: why a node means nothing, or something else, at an older opset.

Read from ONNX's own schemas: whether the operator exists there, with these inputs, attributes and
types. A schema does not say whether an unchanged signature computes something else, so operators
whose definition changed up to `NEWEST_SOURCE` are listed here once they have been read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import onnx
import onnx_ir as ir

from mobius_ir_rules.passes.constants import constant_ints
from mobius_ir_rules.values import describe_node, describe_value, input_at, static_dim

NEWEST_SOURCE = 25
"""The newest opset whose changes are listed here."""

REDUCTIONS = frozenset(
    f"Reduce{kind}"
    for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
)
"""Their axes became an input in opset 18 (those of ReduceSum in 13)."""

_TYPES_ONLY = """
    Acos Acosh Asin Asinh Atan Atanh Bernoulli Constant ConstantOfShape Conv ConvTranspose Cos Cosh
    DeformConv Det Dropout Elu Equal EyeLike Flatten GRU GlobalAveragePool GlobalLpPool
    GlobalMaxPool HardSigmoid HardSwish Identity If InstanceNormalization IsInf IsNaN LSTM Loop
    LpNormalization MaxPool MaxRoiPool MaxUnpool Mish Multinomial NegativeLogLikelihoodLoss
    QLinearMatMul RNN RandomNormal RandomNormalLike RandomUniform RandomUniformLike Reshape RoiAlign
    Round Scan Selu Shape Sin Sinh Size Softplus Softsign SplitToSequence Squeeze Tan
    ThresholdedRelu TopK Transpose Unsqueeze
"""
TYPES_ONLY = frozenset(_TYPES_ONLY.split())
"""Changed from opset 17 to 25 by further types only."""

_FURTHER_FEATURES = """
    Attention AveragePool Cast CastLike DequantizeLinear LpPool Pad QuantizeLinear Resize
    ScatterElements ScatterND Split
"""
FURTHER_FEATURES = frozenset(_FURTHER_FEATURES.split())
"""Changed by further types, inputs, attributes and values of these; without them they are equal."""

_NEW_VALUES: Mapping[tuple[str, str], Mapping[str, int]] = MappingProxyType(
    {
        ("Pad", "mode"): {"wrap": 19},
        ("Resize", "coordinate_transformation_mode"): {"half_pixel_symmetric": 19},
        ("ScatterElements", "reduction"): {"max": 18, "min": 18},
        ("ScatterND", "reduction"): {"max": 18, "min": 18},
    }
)
"""Values of an attribute, and the opset that brought them."""


def schema_at(op_type: str, version: int) -> onnx.defs.OpSchema | None:
    """Return the operator's schema that holds at an opset, `None` where it does not exist."""
    if not onnx.defs.has(op_type, version):
        return None
    schema = onnx.defs.get_schema(op_type, version)
    return None if schema.deprecated else schema


def misfit(node: ir.Node, source: int, target: int) -> str | None:
    """Return a full sentence why the node cannot be taken from opset `source` to `target`.

    `None` where it can, perhaps after `opset_adapters.adapt`. Types that are not known are not
    checked.

    Args:
        node: A node of the standard domain.
        source: The opset that the node is written for.
        target: An older one.
    """
    new, old = schema_at(node.op_type, source), schema_at(node.op_type, target)
    if new is None:
        return f"{describe_node(node)} is no operator of opset {source}."
    if old is None:
        return (
            f"{node.op_type} exists from opset {_first(node.op_type, target, source)} on, and "
            f"nothing lowers it to opset {target}."
        )
    if old.since_version == new.since_version:
        return None
    if node.op_type not in REDUCTIONS | TYPES_ONLY | FURTHER_FEATURES:
        return (
            f"The definition of {node.op_type} changed in opset {new.since_version}; one that "
            f"holds at opset {target} is needed."
        )
    checks: list[Callable[[], str | None]] = [
        lambda: _misfit_of_adapter(node, target),
        lambda: _misfit_of_inputs(node, new, old, target),
        lambda: _misfit_of_attributes(node, new, old, target),
        lambda: _misfit_of_types(node, old, target),
    ]
    return next((reason for check in checks if (reason := check()) is not None), None)


def is_default(attribute: ir.Attr, schema: onnx.defs.OpSchema) -> bool:
    """Return whether the attribute says what its absence says too."""
    if attribute.is_ref():
        return False
    if attribute.name == "dilations":
        return all(number == 1 for number in attribute.as_ints())
    declared = schema.attributes[attribute.name].default_value
    if not declared.name:
        return False
    return bool(attribute.value == ir.serde.deserialize_attribute(declared).value)


def _misfit_of_adapter(node: ir.Node, target: int) -> str | None:
    if node.op_type in REDUCTIONS and target < 18:
        axes = input_at(node, 1)
        noop = node.attributes.get("noop_with_empty_axes")
        if axes is not None and not constant_ints(axes):
            return (
                f"The axes of {describe_node(node)} are {describe_value(axes)}; a constant that "
                "is not empty is needed, because they are an attribute before opset 18."
            )
        if axes is None and noop is not None and (noop.is_ref() or noop.as_int()):
            return (
                f"{describe_node(node)} has noop_with_empty_axes and no axes; axes are needed "
                "before opset 18."
            )
    if node.op_type == "Split" and target < 18 and "num_outputs" in node.attributes:
        axis = node.attributes.get("axis")
        size = static_dim(node.inputs[0], 0 if axis is None else axis.as_int())
        parts = len(node.outputs)
        if size is None or size <= -(-size // parts) * (parts - 1):
            return (
                f"{describe_node(node)} splits an axis of the size {size or 'unknown'} of "
                f"{describe_value(node.inputs[0])} in {parts} parts; a known size that leaves "
                "something for each is needed before opset 18."
            )
    return None


def _misfit_of_inputs(
    node: ir.Node, new: onnx.defs.OpSchema, old: onnx.defs.OpSchema, target: int
) -> str | None:
    if node.op_type in REDUCTIONS:
        return None  # The axes become an attribute.
    for index, value in enumerate(node.inputs):
        if value is not None and index >= old.max_input:
            return (
                f"{describe_node(node)} has the input {new.inputs[index].name}; opset {target} "
                f"has only the first {old.max_input}."
            )
    return None


def _misfit_of_attributes(
    node: ir.Node, new: onnx.defs.OpSchema, old: onnx.defs.OpSchema, target: int
) -> str | None:
    adapted = {"num_outputs"} if node.op_type == "Split" else {"noop_with_empty_axes"}
    for name, attribute in node.attributes.items():
        if name not in new.attributes or name in adapted:
            continue
        if name not in old.attributes and not is_default(attribute, new):
            value = "an attribute of the function" if attribute.is_ref() else attribute.value
            return (
                f"{describe_node(node)} has {name} = {value}; opset {target} has no such "
                "attribute, only what it does by default."
            )
        since = _NEW_VALUES.get((node.op_type, name), {})
        if any(version > target for version in since.values()):
            found = None if attribute.is_ref() else attribute.as_string()
            if found is None or since.get(found, 0) > target:
                value = found or "decided by the function's caller"
                return f"{describe_node(node)} has {name} = {value}; opset {target} has not."
    return None


def _misfit_of_types(node: ir.Node, old: onnx.defs.OpSchema, target: int) -> str | None:
    for formals, values in ((old.inputs, node.inputs), (old.outputs, _typed_outputs(node))):
        for formal, found in zip(_formals(formals), values, strict=False):
            name = _type_name(found.type if isinstance(found, ir.Value) else found)
            if name is not None and name not in formal.types:
                return (
                    f"{describe_node(node)} has {formal.name} of the type {name}; opset {target} "
                    f"has no {node.op_type} of it."
                )
    return None


def _formals(
    parameters: Sequence[onnx.defs.OpSchema.FormalParameter],
) -> Iterator[onnx.defs.OpSchema.FormalParameter]:
    """Yield the formal parameters; the last one again and again where it is variadic."""
    yield from parameters
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    while parameters and parameters[-1].option == variadic:
        yield parameters[-1]


def _typed_outputs(node: ir.Node) -> list[ir.TypeProtocol | None]:
    """Return the types of the outputs; those that an attribute states, from there."""
    types = [value.type for value in node.outputs]
    to, tensor = node.attributes.get("to"), node.attributes.get("value")
    if types and types[0] is None:
        if node.op_type == "Cast" and to is not None and not to.is_ref():
            types[0] = ir.TensorType(ir.DataType(to.as_int()))
        if node.op_type == "Constant" and tensor is not None and not tensor.is_ref():
            types[0] = ir.TensorType(tensor.as_tensor().dtype)
    return types


def _type_name(type_: ir.TypeProtocol | None) -> str | None:
    """Return the type as schemas write it, `tensor(float)`; `None` for others than tensors."""
    if isinstance(type_, ir.TensorType):
        return f"tensor({type_.dtype.name.lower()})"
    return None


def _first(op_type: str, target: int, source: int) -> int:
    """Return the first opset after `target` that has the operator."""
    return next(v for v in range(target + 1, source + 1) if schema_at(op_type, v) is not None)
