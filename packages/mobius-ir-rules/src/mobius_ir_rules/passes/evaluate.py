"""One standard operator on numpy arrays -> its result, by ONNX's reference implementation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

# Deterministic operators with one output. Others are left to the runtime.
# fmt: off
_ELEMENTWISE = frozenset(
    [
        "Abs", "Add", "And", "Ceil", "Cos", "Div", "Equal", "Exp", "Floor", "Greater",
        "GreaterOrEqual", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg",
        "Not", "Or", "Pow", "Reciprocal", "Round", "Sign", "Sin", "Sqrt", "Sub", "Where", "Xor",
    ]
)
_NO_LARGER = frozenset(
    [
        "Cast", "CastLike", "CumSum", "Flatten", "ReduceMax", "ReduceMin", "ReduceProd",
        "ReduceSum", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze",
    ]
)
_GROWING = frozenset(["Concat", "ConstantOfShape", "Expand", "Gather", "Range", "Tile"])
# fmt: on
_OPERATORS = _ELEMENTWISE | _NO_LARGER | _GROWING
_IR_VERSION = 10


def is_evaluable(node: ir.Node) -> bool:
    """Whether `evaluate` knows the operator, and nothing about the node is left open."""
    return (
        (node.domain == "" and node.op_type in _OPERATORS)
        and len(node.outputs) == 1
        and not any(attribute.is_ref() for attribute in node.attributes.values())
    )


def predicted_size(node: ir.Node, inputs: Sequence[np.ndarray]) -> int:
    """Return an upper bound of the result's size in bytes, without computing it.

    Arguments that the operator refuses give an arbitrary number.
    """
    width: int = max((array.itemsize for array in inputs), default=1)
    match node.op_type:
        case "ConstantOfShape":
            return math.prod(map(int, inputs[0])) * 8
        case "Concat":
            return sum(array.nbytes for array in inputs)
        case "Tile":
            return inputs[0].nbytes * math.prod(map(int, inputs[1]))
        case "Range":
            start, stop, step = (float(array) for array in inputs)
            return max(0, math.ceil((stop - start) / step)) * int(width) if step else 0
        case "Gather":
            axis = node.attributes.get_int("axis", 0)
            return int(inputs[1].size * inputs[0].nbytes / max(1, inputs[0].shape[axis]))
        case "Expand":
            return _broadcast_size([inputs[0].shape, tuple(map(int, inputs[1]))]) * width
        case "Cast" | "CastLike":
            return inputs[0].size * 8
        case operator if operator in _ELEMENTWISE:
            return _broadcast_size([array.shape for array in inputs]) * width
    return max(array.nbytes for array in inputs)


def _broadcast_size(shapes: Sequence[Sequence[int]]) -> int:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return math.prod(0 if 0 in dims else max(dims) for dims in zip(*padded, strict=True))


def evaluate(node: ir.Node, inputs: Mapping[str, np.ndarray], version: int) -> np.ndarray:
    """Compute a node's only output.

    Args:
        node: A node for which `is_evaluable` holds.
        inputs: The data of each input, by value name; bfloat16 and the like as ml_dtypes.
        version: The version of the default opset.

    Returns:
        The result, in the dtype that the operator's definition gives.

    Raises:
        Exception: What the reference implementation raises for arguments that it refuses; its
            types are not documented.
    """
    # Loads every operator's implementation, so only when one is needed.
    import onnx
    import onnx.reference

    proto = ir.serde.serialize_node(node)
    graph = onnx.GraphProto(
        name="constant",
        node=[proto],
        input=[onnx.ValueInfoProto(name=name) for name in inputs],
        output=[onnx.ValueInfoProto(name=proto.output[0])],
    )
    opset = onnx.OperatorSetIdProto(domain="", version=version)
    model = onnx.ModelProto(ir_version=_IR_VERSION, graph=graph, opset_import=[opset])
    with np.errstate(all="ignore"):
        (result,) = onnx.reference.ReferenceEvaluator(model).run(None, dict(inputs))
    return np.asarray(result)
