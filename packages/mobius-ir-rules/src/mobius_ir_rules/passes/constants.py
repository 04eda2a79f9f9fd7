"""The data of constant values: small ones only, and never by reading a weight."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from mobius_ir_rules.lazy import is_small_materialized

_SCALARS = {
    "value_float": ir.DataType.FLOAT,
    "value_floats": ir.DataType.FLOAT,
    "value_int": ir.DataType.INT64,
    "value_ints": ir.DataType.INT64,
}


def constant_tensor(value: ir.Value | None, limit: int) -> ir.TensorProtocol | None:
    """Return the tensor behind a `Constant` node's output or an initializer, or None.

    Args:
        value: Any value. An initializer that a caller can replace (a graph input) is no constant.
        limit: Largest size in bytes; larger, lazy and unloaded tensors are None.
    """
    if value is None or value.is_graph_input():
        return None
    tensor = value.const_value if value.is_initializer() else _of_constant_node(value.producer())
    return tensor if is_small_materialized(tensor, limit) else None


def constant_array(value: ir.Value | None, limit: int = 1024) -> np.ndarray | None:
    """Return the data of `constant_tensor` as an array."""
    tensor = constant_tensor(value, limit)
    return None if tensor is None else tensor.numpy()


def constant_ints(value: ir.Value | None) -> list[int] | None:
    """Return a small integer constant flattened, or None if `value` is not one."""
    array = constant_array(value)
    if array is None or array.dtype.kind not in "iu":
        return None
    return [int(item) for item in array.reshape(-1)]


def _of_constant_node(node: ir.Node | None) -> ir.TensorProtocol | None:
    if node is None or (node.domain, node.op_type) != ("", "Constant"):
        return None
    attribute = next(iter(node.attributes.values()))
    if attribute.is_ref():
        return None
    if attribute.name == "value":
        return attribute.as_tensor()
    dtype = _SCALARS.get(attribute.name)
    return None if dtype is None else ir.tensor(attribute.value, dtype=dtype)
