"""The table of bodies as a whole: schemas, opsets, and what passes make of the bodies."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime.capi.onnxruntime_pybind11_state as onnxruntime_state
import pytest

from mobius_ir_rules.functions import FUNCTIONS
from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.functions.calls import CallBody
from mobius_ir_rules.passes import (
    EliminateCommonSubexpressions,
    EliminateIdentity,
    FoldConstants,
    InferShapes,
    InlineFunctions,
    RemoveUnused,
)
from mobius_ir_rules.testing import op_counts, random_inputs, run_model

# The bodies of a `CallBody` are tested with the calls that they are made for.
PLAIN = [key for key, row in FUNCTIONS.items() if not isinstance(row, CallBody)]
MICROSOFT = [key for key in PLAIN if key[0] == "com.microsoft"]
SCHEMAS: dict[tuple[str, str], Any] = {
    (schema.domain, schema.name): schema for schema in onnxruntime_state.get_all_operator_schema()
}


@pytest.mark.parametrize("key", MICROSOFT, ids="::".join)
def test_formals_are_those_of_the_schema(key: tuple[str, str]) -> None:
    """C067: names in the schema's order; every required input and every output is there."""
    schema, function = SCHEMAS[key], FUNCTIONS[key](24)
    names = [formal.name for formal in schema.inputs]
    assert [value.name for value in function.inputs] == names[: len(function.inputs)]
    assert len(function.inputs) >= schema.min_input
    assert [value.name for value in function.outputs] == [out.name for out in schema.outputs]


@pytest.mark.parametrize("key", MICROSOFT, ids="::".join)
def test_attributes_have_the_defaults_of_the_schema(key: tuple[str, str]) -> None:
    """Where the schema declares no default, the kernels take 0."""
    schema, function = SCHEMAS[key], FUNCTIONS[key](24)
    for name, attribute in function.attributes.items():
        declared = onnx.AttributeProto.FromString(schema.attributes[name]._default_value)
        expected = onnx.helper.get_attribute_value(declared) if declared.type else 0
        assert attribute.value == pytest.approx(expected), name


@pytest.mark.parametrize("opset", [17, 18, 20, 21, 22, 23, 24])
@pytest.mark.parametrize("key", PLAIN, ids="::".join)
def test_bodies_hold_operators_of_their_opset_only(key: tuple[str, str], opset: int) -> None:
    """C105, C106: standard operators, each of which exists in the opset that is imported."""
    function = FUNCTIONS[key](opset)
    assert function.identifier() == (*key, "")
    assert dict(function.opset_imports) == {"": opset}
    for node in function.all_nodes():
        assert node.domain == ""
        schema = onnx.defs.get_schema(node.op_type, opset)
        assert schema.min_input <= len(node.inputs) <= schema.max_input, node
        assert set(node.attributes) <= set(schema.attributes), node
    read = {value for node in function.all_nodes() for value in node.inputs}
    assert set(function.inputs) <= read


def test_fused_mat_mul_inlined_and_folded_has_no_branches() -> None:
    """The conditions are constants once the attributes are known."""
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 24, "com.microsoft": 1]>
        g (float[2,3,4] a, float[2,5,4] b) => (float[2,3,5] y) {
            y = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (a, b)
        }"""
    )
    inputs = random_inputs(model)
    before = run_model(model, inputs)["y"]
    for step in (AttachFunctions(), InlineFunctions(), FoldConstants(), EliminateIdentity()):
        step(model)
    RemoveUnused()(model)
    assert "If" not in op_counts(model)
    assert op_counts(model)["Transpose"] == 1
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_allclose(run_model(model, inputs)["y"], before, rtol=1e-6, atol=1e-6)


def test_passes_leave_bodies_right() -> None:
    """What runs after bodies are attached works on the bodies as well."""
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 24, "com.microsoft": 1]>
        g (float[B,S,8] a, float[B,S,8] b, float[8] w, float[8] v) => (float[B,S,S] y) {
            n, m, d, s = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.1> (a, b, w)
            o, m2, d2, s2 = com.microsoft.SkipLayerNormalization <epsilon = 0.1> (s, n, w, v)
            f = com.microsoft.FastGelu(o, v)
            h = com.microsoft.BiasGelu(s2, v)
            q = com.microsoft.QuickGelu(h)
            y = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (q, f)
        }"""
    )
    inputs = random_inputs(model, {"B": 2, "S": 3})
    expected = run_model(model, inputs)["y"]
    AttachFunctions()(model)
    for step in (
        FoldConstants(),
        EliminateIdentity(),
        EliminateCommonSubexpressions(),
        RemoveUnused(),
        InferShapes(),
    ):
        step(model)
    assert len(model.functions) == 6
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    # Operators under other names have no kernels: the bodies run.
    renamed = ir.from_proto(ir.to_proto(model))
    for node in renamed.graph:
        node.domain = "unknown.domain"
    for function in list(renamed.functions.values()):
        del renamed.functions[function.identifier()]
        function.domain = "unknown.domain"
        renamed.functions[function.identifier()] = function
    renamed.opset_imports["unknown.domain"] = 1
    np.testing.assert_allclose(run_model(renamed, inputs)["y"], expected, rtol=2e-5, atol=2e-5)
    InlineFunctions()(model)
    assert {node.domain for node in model.graph.all_nodes()} == {""}
    np.testing.assert_allclose(run_model(model, inputs)["y"], expected, rtol=2e-5, atol=2e-5)
