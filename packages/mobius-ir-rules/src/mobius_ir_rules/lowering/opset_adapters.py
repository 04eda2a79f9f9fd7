"""`adapt(node, ...)`: a node that `misfit` has nothing against -> as an older opset writes it.

Attributes that the older opset lacks, and that say nothing, go; the axes of a reduction become an
attribute before opset 18; a Split by `num_outputs` is written by equal parts, or by sizes where the
parts are not equal.
"""

from __future__ import annotations

import onnx_ir as ir

from mobius_ir_rules.lowering.opset_changes import REDUCTIONS, schema_at
from mobius_ir_rules.passes.constants import constant_ints
from mobius_ir_rules.passes.graphs import unique_name
from mobius_ir_rules.values import input_at, node_name, static_dim


def adapt(node: ir.Node, target: int, taken: set[str]) -> bool:
    """Rewrite the node in place for opset `target`; return whether anything changed.

    Args:
        node: A node of the standard domain for which `misfit` returns `None`.
        target: The opset.
        taken: Names of values in the model; that of a new constant is added.
    """
    old = schema_at(node.op_type, target)
    if old is None:
        raise ValueError(f"{node.op_type} does not exist at opset {target}.")
    modified = False
    if node.op_type in REDUCTIONS and target < 18:
        modified |= _axes_to_attribute(node)
    if node.op_type == "Split" and "num_outputs" in node.attributes and target < 18:
        _split_by_sizes(node, taken)
        modified = True
    for name in [name for name in node.attributes if name not in old.attributes]:
        del node.attributes[name]
        modified = True
    # Nothing but omitted inputs is left behind those that the opset knows.
    if old.max_input < len(node.inputs):
        node.resize_inputs(old.max_input)
        modified = True
    return modified


def _axes_to_attribute(node: ir.Node) -> bool:
    axes = constant_ints(input_at(node, 1))
    if len(node.inputs) > 1:
        node.resize_inputs(1)
    if axes is None:
        return False
    node.attributes.add(ir.AttrInt64s("axes", axes))
    return True


def _split_by_sizes(node: ir.Node, taken: set[str]) -> None:
    """Drop `num_outputs`; give the sizes where the last part is smaller than the others."""
    axis, parts = node.attributes.get("axis"), len(node.outputs)
    size = static_dim(node.inputs[0], 0 if axis is None else axis.as_int())
    assert size is not None  # misfit() has seen it.
    del node.attributes["num_outputs"]
    if size % parts == 0:
        return
    part = -(-size // parts)
    sizes = ir.tensor([*[part] * (parts - 1), size - part * (parts - 1)], dtype=ir.DataType.INT64)
    constant = ir.node("Constant", [], {"value": sizes})
    value = constant.outputs[0]
    value.name = unique_name(f"{node_name(node)}_sizes", taken)
    value.type, value.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([parts])
    node.prepend(constant)
    node.resize_inputs(2)
    node.replace_input_with(1, value)
