"""AttachFunctions with operators whose body depends on the call."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.passes import InlineFunctions
from mobius_ir_rules.testing import op_counts, random_inputs, run_model

CONV = "com.microsoft.CausalConvWithState"
KEY = ("com.microsoft", "CausalConvWithState")


def _model(body: str, opset: int = 24) -> ir.Model:
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]>
        g (float[2,3,L] x, float[3,1,4] w, float[3,1,2] v) => (float[2,3,L] y) {{ {body} }}"""
    )
    for node in model.graph:
        for value in node.outputs:
            value.dtype = ir.DataType.FLOAT
    return model


SAME = f"""
    [a] t, s = {CONV} <activation = "silu"> (x, w)
    [b] y, r = {CONV} <activation = "silu"> (t, w)
"""
OTHER = f"""
    [a] t, s = {CONV} <activation = "silu"> (x, w)
    [b] u, q = {CONV} (t, v)
    [c] y, r = {CONV} <activation = "silu"> (u, w, , s)
"""


def _check(model: ir.Model) -> None:
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_calls_of_one_form_share_a_body() -> None:
    """C067, C105; a second run changes nothing."""
    model = _model(SAME)
    expected = run_model(model, random_inputs(model, {"L": 5}))["y"]
    result = AttachFunctions()(model)
    assert result.modified
    assert result.refusals == ()
    assert list(model.functions) == [(*KEY, "")]
    assert dict(model.functions[*KEY, ""].opset_imports) == {"": 24}
    _check(model)
    assert not AttachFunctions()(model).modified
    np.testing.assert_array_equal(run_model(model, random_inputs(model, {"L": 5}))["y"], expected)


def test_one_body_does_not_serve_two_forms(caplog: pytest.LogCaptureFixture) -> None:
    """No body is better than one that is another call's; it is logged, and nothing changes."""
    model = _model(OTHER)
    before = ir.to_proto(model).SerializeToString()
    with caplog.at_level(logging.WARNING):
        result = AttachFunctions()(model)
    reasons = [
        f"com.microsoft::CausalConvWithState (node '{name}') has another form than "
        "com.microsoft::CausalConvWithState (node 'a'); one for all is needed, because an "
        "operator has one body."
        for name in ("b", "c")
    ]
    assert [refusal.reason for refusal in result.refusals] == reasons
    assert reasons[0] in caplog.text
    assert not result.modified
    assert ir.to_proto(model).SerializeToString() == before


def test_overloads_are_inlined() -> None:
    """With overloads each form has its body, and inlining leaves none of them."""
    model = _model(OTHER)
    inputs = random_inputs(model, {"L": 5})
    expected = run_model(model, inputs)["y"]
    result = AttachFunctions(overloads=True)(model)
    assert result.refusals == ()
    assert list(model.functions) == [(*KEY, ""), (*KEY, "2"), (*KEY, "3")]
    _check(model)
    InlineFunctions()(model)
    assert not model.functions
    assert set(model.opset_imports) == {""}
    assert op_counts(model)["Conv"] == 3
    _check(model)
    np.testing.assert_allclose(run_model(model, inputs)["y"], expected, rtol=1e-6, atol=1e-6)


def test_overloads_leave_what_has_no_body() -> None:
    """A call without a body keeps the kernel's name, and the others are expanded."""
    model = _model(
        f"""[a] t, s = {CONV} <activation = "silu"> (x, w)
        [b] y, q = {CONV} <input_channel_offset = 1> (t, v)"""
    )
    result = AttachFunctions(overloads=True)(model)
    (refusal,) = result.refusals
    assert (refusal.node, refusal.reason) == (
        "b",
        "com.microsoft::CausalConvWithState (node 'b') has input_channel_offset=1; the body "
        "computes the operator with 0 only.",
    )
    InlineFunctions()(model)
    assert [node.name for node in model.graph if node.domain] == ["b"]
    assert model.graph[-1].overload == ""
    assert model.opset_imports["com.microsoft"] == 1


def test_a_call_without_a_body_refuses_them_all() -> None:
    """A function is found by domain and name alone."""
    model = _model(
        f"""[a] t, s = {CONV} <activation = "silu"> (x, w)
        [b] y, q = {CONV} <ndim = 2> (t, v)"""
    )
    result = AttachFunctions()(model)
    assert [refusal.node for refusal in result.refusals] == ["b"]
    assert not result.modified
    assert not model.functions


def test_omitted_inputs_at_the_end_are_dropped() -> None:
    """A function has no formal inputs for them."""
    model = _model(f"[a] y, s = {CONV} (x, w, , )")
    model.graph[0].resize_inputs(4)
    AttachFunctions()(model)
    assert len(model.graph[0].inputs) == 2
    _check(model)


def test_older_opset() -> None:
    """Bodies exist from opset 17 on."""
    model = _model(SAME, opset=16)
    reasons = {refusal.reason for refusal in AttachFunctions()(model).refusals}
    assert reasons == {"The model imports opset 16 of ONNX; bodies are written for 17 and later."}
