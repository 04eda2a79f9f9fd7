"""The table of changes against ONNX's own schemas, and what `adapt` writes."""

from __future__ import annotations

import itertools

import onnx
import onnx_ir as ir
import pytest

from mobius_ir_rules.lowering import opset_changes
from mobius_ir_rules.lowering.opset_adapters import adapt
from mobius_ir_rules.lowering.opset_changes import NEWEST_SOURCE, REDUCTIONS, misfit, schema_at

VERSIONS = range(17, NEWEST_SOURCE + 1)
Formal = tuple[str, onnx.defs.OpSchema.FormalParameterOption]


def history(op_type: str) -> list[onnx.defs.OpSchema]:
    """Return the operator's different schemas from opset 17 on."""
    schemas = {
        schema.since_version: schema
        for version in VERSIONS
        if (schema := schema_at(op_type, version)) is not None
    }
    return [schemas[version] for version in sorted(schemas)]


def operators() -> list[str]:
    schemas = onnx.defs.get_all_schemas_with_history()
    return sorted({schema.name for schema in schemas if schema.domain == ""})


def signature(schema: onnx.defs.OpSchema) -> tuple[object, ...]:
    """Return all of a schema but its types: parameters, attributes and their defaults."""
    return (
        [(formal.option, formal.is_homogeneous) for formal in schema.inputs],
        [(formal.option, formal.is_homogeneous) for formal in schema.outputs],
        {
            name: (attribute.type, attribute.required, attribute.default_value.SerializeToString())
            for name, attribute in schema.attributes.items()
        },
    )


CHANGED = [name for name in operators() if len(history(name)) > 1]


def test_there_are_changes_to_know() -> None:
    assert len(CHANGED) > 80


@pytest.mark.parametrize("op_type", sorted(opset_changes.TYPES_ONLY))
def test_what_is_listed_as_changed_by_types_only_is(op_type: str) -> None:
    """Types are only ever added, so that the older opset's are checked one by one."""
    assert op_type in CHANGED
    for old, new in itertools.pairwise(history(op_type)):
        assert signature(old) == signature(new)
        for before, after in zip(old.inputs, new.inputs, strict=True):
            assert before.types <= after.types


@pytest.mark.parametrize("op_type", sorted(opset_changes.FURTHER_FEATURES))
def test_what_is_listed_as_extended_is(op_type: str) -> None:
    """Nothing that the older opset had is gone, or has another default."""
    assert op_type in CHANGED
    for old, new in itertools.pairwise(history(op_type)):
        assert len(old.inputs) <= len(new.inputs)
        for name, attribute in old.attributes.items():
            assert new.attributes[name].default_value == attribute.default_value


def test_what_is_not_listed_is_refused() -> None:
    listed = REDUCTIONS.union(opset_changes.TYPES_ONLY, opset_changes.FURTHER_FEATURES)
    others = sorted(set(CHANGED) - listed)
    assert others == ["DFT", "GridSample", "OptionalGetElement", "OptionalHasElement"]
    for op_type in others:
        node = ir.node(op_type, [ir.val("x")], name="n")
        versions = [schema.since_version for schema in history(op_type)]
        reason = misfit(node, versions[-1], max(17, versions[0]))
        assert reason is not None
        assert reason.startswith(f"The definition of {op_type} changed in opset {versions[-1]}; ")


@pytest.mark.parametrize("op_type", sorted(REDUCTIONS))
def test_the_axes_of_each_reduction_become_an_attribute(op_type: str) -> None:
    axes = ir.node("Constant", [], {"value_ints": [0, -1]}).outputs[0]
    node = ir.node(op_type, [ir.val("x"), axes], {"keepdims": 0, "noop_with_empty_axes": 0})
    assert misfit(node, 24, 17) is None
    assert adapt(node, 17, set())
    assert len(node.inputs) == 1
    assert {name: attribute.value for name, attribute in node.attributes.items()} == {
        "keepdims": 0,
        "axes": (0, -1),
    }
    assert not adapt(node, 17, set())


def test_a_reduction_of_all_axes_has_no_attribute() -> None:
    node = ir.node("ReduceMean", [ir.val("x"), None], {"noop_with_empty_axes": 0})
    assert misfit(node, 24, 17) is None
    assert adapt(node, 17, set())
    assert len(node.inputs) == 1
    assert not node.attributes


def split(size: int, parts: int) -> tuple[ir.Graph, ir.Node]:
    x = ir.val("x", ir.DataType.FLOAT, ["N", size])
    attributes = {"axis": -1, "num_outputs": parts}
    node = ir.node("Split", [x], attributes, num_outputs=parts, name="split")
    return ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 24}), node


def test_a_split_in_equal_parts_needs_no_sizes() -> None:
    graph, node = split(12, 3)
    assert misfit(node, 24, 17) is None
    assert adapt(node, 17, set())
    assert (len(node.inputs), list(node.attributes), graph.num_nodes()) == (1, ["axis"], 1)


@pytest.mark.parametrize(("size", "parts", "sizes"), [(10, 3, [4, 4, 2]), (7, 2, [4, 3])])
def test_a_split_in_unequal_parts_gets_sizes(size: int, parts: int, sizes: list[int]) -> None:
    graph, node = split(size, parts)
    taken = {"split_sizes"}
    assert adapt(node, 17, taken)
    assert graph.num_nodes() == 2
    value = node.inputs[1]
    assert value is not None
    assert value.name == "split_sizes_2"
    assert value.producer().attributes["value"].as_tensor().numpy().tolist() == sizes


def test_a_split_that_leaves_nothing_for_the_last_part_is_refused() -> None:
    """5 in 4 parts are 2, 2, 1 and nothing."""
    _, node = split(5, 4)
    reason = misfit(node, 24, 17)
    assert reason is not None
    assert reason.startswith("Split (node 'split') splits an axis of the size 5 ")


def test_attributes_that_say_nothing_are_dropped() -> None:
    node = ir.node("Cast", [ir.val("x")], {"to": 1, "saturate": 1, "round_mode": "up"})
    assert misfit(node, 24, 17) is None
    assert adapt(node, 17, set())
    assert list(node.attributes) == ["to"]
    pool = ir.node("AveragePool", [ir.val("x")], {"kernel_shape": [2], "dilations": [1]})
    assert misfit(pool, 24, 17) is None
    pool.attributes.add(ir.AttrInt64s("dilations", [2]))
    assert misfit(pool, 24, 17) == (
        "AveragePool (node '') has dilations = (2,); opset 17 has no such attribute, only what it "
        "does by default."
    )


def test_an_attribute_of_the_enclosing_function_is_not_known() -> None:
    node = ir.node("Cast", [ir.val("x")], {"to": 1}, name="cast")
    node.attributes.add(ir.RefAttr("saturate", "own", ir.AttributeType.INT))
    reason = "Cast (node 'cast') has saturate = an attribute of the function; opset 17 has no such "
    assert str(misfit(node, 24, 17)).startswith(reason)


def test_an_operator_without_a_schema_cannot_be_adapted() -> None:
    with pytest.raises(ValueError, match="Swish does not exist at opset 23"):
        adapt(ir.node("Swish", [ir.val("x")]), 23, set())
