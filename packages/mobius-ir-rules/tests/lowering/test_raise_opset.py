"""RaiseOpset: its table against ONNX's schemas, adapters, refusals, and numbers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest

from mobius_ir_rules.lowering.opset import LowerOpset, OpsetError
from mobius_ir_rules.lowering.opset_changes import NEWEST_SOURCE, schema_at
from mobius_ir_rules.lowering.raise_opset import (
    ADAPTERS,
    EXTENDED,
    IR_VERSION,
    OLDEST_SOURCE,
    RaiseOpset,
    obstacles,
)
from mobius_ir_rules.passes.graphs import all_nodes
from mobius_ir_rules.testing import op_counts, random_inputs, run_model

VERSIONS = range(OLDEST_SOURCE, NEWEST_SOURCE + 1)


def history(op_type: str) -> list[onnx.defs.OpSchema]:
    """Return the operator's different schemas from the oldest source on."""
    schemas = {
        schema.since_version: schema
        for version in VERSIONS
        if (schema := schema_at(op_type, version)) is not None
    }
    return [schemas[version] for version in sorted(schemas)]


def operators() -> list[str]:
    schemas = onnx.defs.get_all_schemas_with_history()
    return sorted({schema.name for schema in schemas if schema.domain == ""})


CHANGED = [name for name in operators() if len(history(name)) > 1]


def signature(formal: onnx.defs.OpSchema.FormalParameter) -> tuple[object, ...]:
    return formal.option, formal.is_homogeneous


def requirements(old: onnx.defs.OpSchema, new: onnx.defs.OpSchema) -> list[str]:
    """Return in what a call that is right by the old schema may be wrong by the new one."""
    found = []
    for kind in ("inputs", "outputs"):
        before, after = getattr(old, kind), getattr(new, kind)
        if list(map(signature, before)) != list(map(signature, after[: len(before)])):
            found.append(kind)
        optional = onnx.defs.OpSchema.FormalParameterOption.Optional
        if any(formal.option != optional for formal in after[len(before) :]):
            found.append(f"further {kind}")
    for before, after in zip(old.inputs, new.inputs, strict=False):
        if not before.types <= after.types:
            found.append(f"types of {before.name}")
    for name, attribute in old.attributes.items():
        if name not in new.attributes:
            found.append(f"no {name}")
        elif attribute.default_value != new.attributes[name].default_value:
            found.append(f"default of {name}")
    for name in new.attributes.keys() - old.attributes.keys():
        if new.attributes[name].required:
            found.append(f"{name} is required")
    return found


@pytest.mark.parametrize("op_type", sorted(EXTENDED))
def test_what_is_listed_as_extended_is(op_type: str) -> None:
    """Whatever was a call is one still, with the same defaults."""
    assert op_type in CHANGED
    for old, new in itertools.pairwise(history(op_type)):
        assert requirements(old, new) == []


def test_what_is_not_listed_is_refused_by_name() -> None:
    others = sorted(set(CHANGED) - EXTENDED - ADAPTERS.keys())
    assert others == ["DFT", "GridSample", "OptionalGetElement", "OptionalHasElement"]
    for op_type in others:
        old, new = history(op_type)[0], history(op_type)[-1]
        first = max(OLDEST_SOURCE, old.since_version)
        node = ir.node(op_type, [ir.val("x")], name="n")
        graph = ir.Graph([], [], nodes=[node], opset_imports={"": first})
        (refusal,) = obstacles(ir.Model(graph, ir_version=8), new.since_version)
        assert refusal.op_type == op_type
        assert refusal.reason.startswith(
            f"The definition of {op_type} changed in opset {new.since_version}; "
        )


@pytest.mark.parametrize("op_type", sorted(ADAPTERS))
def test_an_adapter_is_for_the_one_change_that_is_none_of_types(op_type: str) -> None:
    changed = ADAPTERS[op_type].changed
    for old, new in itertools.pairwise(history(op_type)):
        if old.since_version < changed <= new.since_version:
            assert new.since_version == changed
        else:
            assert requirements(old, new) == []


def parse(body: str, opset: int, inputs: str = "float[B, 6] x", outputs: str = "") -> ir.Model:
    return ir.from_onnx_text(
        f"""<ir_version: 7, opset_import: ["" : {opset}]>
        g ({inputs}) => ({outputs or "float[M, N] y"}) {{ {body} }}"""
    )


def raised(model: ir.Model, version: int = 24, **given: npt.NDArray[Any]) -> ir.Model:
    """Raise the model, and require that it is valid and gives the same numbers."""
    inputs = random_inputs(model, {"B": 3}, given)
    before = run_model(model, inputs)
    assert RaiseOpset(version)(model).modified
    assert model.opset_imports[""] == version
    assert model.ir_version == IR_VERSION
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for name, value in run_model(model, inputs).items():
        np.testing.assert_allclose(value, before[name], rtol=1e-6, atol=1e-6)
    assert not RaiseOpset(version)(model).modified
    return model


REDUCTIONS = sorted(name for name in ADAPTERS if name.startswith("Reduce"))


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_axes_of_reductions_become_an_input(op_type: str, opset: int) -> None:
    model = raised(
        parse(
            f"a = Abs(x)  b = {op_type} <axes = [-1]> (a)  y = {op_type} <keepdims = 1> (b)", opset
        )
    )
    first, second = (node for node in model.graph if node.op_type == op_type)
    assert "axes" not in first.attributes
    assert len(first.inputs) == 2
    assert len(second.inputs) == 1
    assert op_counts(model)["Constant"] == 1


def test_a_split_in_equal_parts_says_in_how_many() -> None:
    outputs = "float[B, 2] a, float[B, 2] b, float[B, 2] c"
    model = raised(parse("a, b, c = Split <axis = 1> (x)", 13, outputs=outputs))
    assert model.graph.node(0).attributes["num_outputs"].as_int() == 3
    sizes = "s = Constant <value_ints = [1, 2, 3]> ()  a, b, c = Split <axis = 1> (x, s)"
    outputs = "float[B, 1] a, float[B, 2] b, float[B, 3] c"
    model = raised(parse(sizes, 13, outputs=outputs))
    assert "num_outputs" not in model.graph.node(1).attributes


def test_pixels_of_regions_stay_where_they_were() -> None:
    inputs = "float[1, 1, 6, 6] x, float[1, 4] r, int64[1] i"
    body = "y = RoiAlign <output_height = 3, output_width = 3> (x, r, i)"
    model = raised(
        parse(body, 15, inputs, "float[1, 1, 3, 3] y"),
        21,  # ONNX Runtime has no kernel of a newer one
        r=np.array([[0.5, 0.5, 4.0, 5.0]], np.float32),
        i=np.array([0]),
    )
    mode = model.graph.node(0).attributes["coordinate_transformation_mode"]
    assert mode.as_string() == "output_half_pixel"
    # From opset 16 on there is nothing to say.
    model = parse(body, 16, inputs, "float[1, 1, 3, 3] y")
    RaiseOpset(24)(model)
    assert "coordinate_transformation_mode" not in model.graph.node(0).attributes


NORM = "float[B, 4, 5] x, float[4] s, float[4] b, float[4] m, float[4] v"


def test_batch_normalization_that_infers() -> None:
    model = parse("y = BatchNormalization (x, s, b, m, v)", 13, NORM, "float[B, 4, 5] y")
    raised(model, v=np.array([0.5, 1.0, 1.5, 2.0], np.float32))


def test_batch_normalization_that_trains_is_refused() -> None:
    model = parse("y, p, q, r, t = BatchNormalization (x, s, b, m, v)", 13, NORM, "float[K] y")
    (refusal,) = obstacles(model, 24)
    assert refusal.reason == (
        "BatchNormalization (node 'y') has 5 outputs; one is needed, because training has others "
        "from opset 14 on."
    )
    # It is no longer about opset 14.
    assert obstacles(parse("y = Relu (x)", 14), 24) == []


@pytest.mark.parametrize("opset", range(13, 24))
def test_a_block_of_every_opset(opset: int) -> None:
    """Attributes that came later say what was done before: Reshape, Shape, Pow, Where, Cast."""
    body = """
        s = Shape (x)  flat = Constant <value_ints = [-1]> ()  r = Reshape (x, flat)
        t = Reshape (r, s)  two = Constant <value_float = 2.0> ()  p = Pow (t, two)
        i = Cast <to = 6> (p)  f = Cast <to = 1> (i)  l = LessOrEqual (f, p)
        w = Where (l, p, t)  m = ReduceMean (w)  a = Add (w, m)  y = Softmax (a)
    """
    raised(parse(body, opset))


def test_subgraphs_and_functions_are_raised_too() -> None:
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 15, "own" : 1]>
        g (float[B, 6] x, bool on) => (float[B, 1] y) {
            y = If (on) <
                then_branch = t () => (float[B, 1] p) { p = ReduceMean <axes = [1]> (x) },
                else_branch = e () => (float[B, 1] q) { q = own.Mean (x) }
            >
        }
        <opset_import: ["" : 14], domain: "own">
        Mean (v) => (w) { w = ReduceMean <axes = [-1]> (v) }
    """)
    for on in (True, False):
        again = raised(model.clone(), on=np.array(on))
        (function,) = again.functions.values()
        assert dict(function.opset_imports) == {"": 24}
        means = [node for node in all_nodes(again.graph) if node.op_type == "ReduceMean"]
        means += [node for node in function if node.op_type == "ReduceMean"]
        assert [len(node.inputs) for node in means] == [2, 2]


def test_an_attribute_of_the_function_is_not_known() -> None:
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 15, "own" : 1]>
        g (float[B, 6] x) => (float[B, 1] y) { y = own.Mean <over = [1]> (x) }
        <opset_import: ["" : 15], domain: "own">
        Mean <over: ints> (v) => (w) { [mean] w = ReduceMean <axes: ints = @over> (v) }
    """)
    before = ir.to_proto(model)
    with pytest.raises(OpsetError) as raised:
        RaiseOpset(24)(model)
    assert str(raised.value) == (
        "Cannot raise the model from opset 15 to 24:\n  mean (ReduceMean): The axes of ReduceMean "
        "(node 'mean') are an attribute of the enclosing function; known ones are needed, because "
        "they are an input from opset 18 on."
    )
    assert ir.to_proto(model) == before


@pytest.mark.parametrize(
    ("body", "opset", "reason"),
    [
        (
            "y = Upsample (x, x)",
            13,
            "Upsample (node 'y') is no operator of opset 13.",
        ),
        (
            "y = GroupNormalization (x, x, x)",
            18,
            "GroupNormalization (node 'y') is no operator of opset 18.",
        ),
        (
            "a = Relu (x)  y = Relu (a)",
            12,
            "Relu (node 'a') and others are written for opset 12; 13 or later is needed, because "
            "what changed before is not known here.",
        ),
    ],
)
def test_refusals(body: str, opset: int, reason: str) -> None:
    model = parse(body, opset)
    (refusal,) = obstacles(model, 24)
    assert (refusal.rule, refusal.reason) == ("RaiseOpset", reason)


def test_layer_normalization_of_onnx_runtime_is_that_of_onnx() -> None:
    """ONNX Runtime has had it in the standard domain before opset 17, with the same defaults."""
    inputs = "float[B, 6] x, float[6] s, float[6] b"
    for attributes in ("", "<epsilon = 0.5, axis = 1>"):
        raised(parse(f"y = LayerNormalization {attributes} (x, s, b)", 13, inputs))
    assert len(obstacles(parse("y = LayerNormalization (x, s, b)", 13, inputs), 16)) == 1


def test_a_newer_model_is_left_alone() -> None:
    model = parse("y = Relu (x)", 24)
    assert not RaiseOpset(23)(model).modified
    assert (model.opset_imports[""], model.ir_version) == (24, 7)
    assert obstacles(model, 23) == []


def test_imports_under_another_name_are_raised() -> None:
    """`ai.onnx` is the standard domain."""
    model = parse("y = Relu (x)", 13)
    model.opset_imports["ai.onnx"] = model.opset_imports.pop("")
    assert RaiseOpset(24)(model).modified
    assert dict(model.opset_imports) == {"": 24}


@pytest.mark.parametrize("version", [13, NEWEST_SOURCE + 1])
def test_versions(version: int) -> None:
    with pytest.raises(ValueError, match=f"version is {version}; one from 14 to"):
        RaiseOpset(version)


def test_there_and_back() -> None:
    """What is raised can be lowered again, and computes the same."""
    model = raised(parse("a = Abs (x)  y = ReduceMean <axes = [1]> (a)", 17))
    LowerOpset(17)(model)
    mean = next(node for node in model.graph if node.op_type == "ReduceMean")
    assert mean.attributes["axes"].as_ints() == (1,)
