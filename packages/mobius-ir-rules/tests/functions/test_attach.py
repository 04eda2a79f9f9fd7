"""AttachFunctions: where bodies go, and where they may not."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import onnxruntime
import pytest

from mobius_ir_rules.functions import FUNCTIONS
from mobius_ir_rules.functions.attach import AttachFunctions

HEADER = '<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>'
SKIP = "com.microsoft.SkipSimplifiedLayerNormalization"
KEY = ("com.microsoft", "SkipSimplifiedLayerNormalization", "")


def _model(body: str, outputs: str = "float[B,S,8] y", header: str = HEADER) -> ir.Model:
    return ir.from_onnx_text(
        f"""{header}
        g (float[B,S,8] a, float[B,S,8] b, float[8] w) => ({outputs}) {{ {body} }}"""
    )


def _check(model: ir.Model) -> onnx.ModelProto:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return proto


def test_body_has_the_opset_of_the_model_and_is_attached_once() -> None:
    """C105, C106; a second run changes nothing."""
    model = _model(f"t = {SKIP} <epsilon = 0.1> (a, b, w)  y = {SKIP} <epsilon = 0.2> (t, b, w)")
    result = AttachFunctions()(model)
    assert result.modified
    assert result.refusals == ()
    assert list(model.functions) == [KEY]
    assert dict(model.functions[KEY].opset_imports) == {"": 23}
    _check(model)
    assert not AttachFunctions()(model).modified


def test_calls_are_written_out_in_full() -> None:
    """All four outputs, the unused statistics unnamed; the default of epsilon spelled out."""
    model = _model(f"y = {SKIP}(a, b, w)")
    AttachFunctions()(model)
    (node,) = model.graph
    names = [value.name for value in node.outputs]
    assert (names[:3], bool(names[3])) == (["y", "", ""], True)
    assert node.attributes.get_float("epsilon") == pytest.approx(1e-12)
    proto = _check(model)
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((1, 2, 8)).astype(np.float32) for _ in range(2))
    found = onnx.reference.ReferenceEvaluator(proto).run(
        None, {"a": a, "b": b, "w": np.ones(8, np.float32)}
    )[0]
    total = a + b
    expected = total / np.sqrt(np.mean(total**2, axis=-1, keepdims=True))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_statistics_that_are_named_and_unused_lose_their_names() -> None:
    """A named statistic asks the kernel for it, and some have none."""
    model = _model(f"y, mean, deviation, sum = {SKIP}(a, b, w)")
    AttachFunctions()(model)
    assert [value.name for value in model.graph[0].outputs] == ["y", "", "", "sum"]
    _check(model)


def test_new_name_of_the_sum_is_not_taken() -> None:
    """The last output cannot go without a name: trailing empty names are dropped in writing."""
    taken = "call_input_skip_bias_sum"
    model = _model(f"[call] t = {SKIP}(a, b, w)  {taken} = Neg(t)  y = Add(t, {taken})")
    AttachFunctions()(model)
    assert model.graph[0].outputs[3].name == f"{taken}_2"
    _check(model)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "[n] y = com.microsoft.SkipLayerNormalization(a, b, w)",
            "com.microsoft::SkipLayerNormalization (node 'n') has 3 inputs; the body needs 4 "
            "(input, skip, gamma, beta), none omitted.",
        ),
        (
            "[n] y = com.microsoft.SkipLayerNormalization(a, b, w, , w)",
            "com.microsoft::SkipLayerNormalization (node 'n') has 4 inputs; the body needs 4 "
            "(input, skip, gamma, beta), none omitted.",
        ),
        (
            f"[n] y = {SKIP}(a, b, w, w)",
            "com.microsoft::SkipSimplifiedLayerNormalization (node 'n') has 4 inputs; the body "
            "needs 3 (input, skip, gamma), none omitted.",
        ),
        (
            "[n] y = com.microsoft.QuickGelu <beta = 1.0> (a)",
            "com.microsoft::QuickGelu (node 'n') has the attribute 'beta'; the body has only "
            "['alpha'].",
        ),
        (
            "[n] y, z = com.microsoft.QuickGelu(a)",
            "com.microsoft::QuickGelu (node 'n') has 2 outputs; the body has 1.",
        ),
    ],
)
def test_call_that_does_not_fit(body: str, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """C067, C101: no body is better than one that reads an absent input; it is logged."""
    model = _model(body)
    before = ir.to_proto(model).SerializeToString()
    with caplog.at_level(logging.WARNING):
        result = AttachFunctions()(model)
    assert not result.modified
    assert [refusal.reason for refusal in result.refusals] == [reason]
    assert [refusal.node for refusal in result.refusals] == ["n"]
    assert reason in caplog.text
    assert ir.to_proto(model).SerializeToString() == before


def test_missing_attribute_without_default() -> None:
    """A window has no default."""
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 23, "mobius.mask": 1]>
        g (int64[B,T] m, int64[B,S] p) => (bool[B,1,S,T] y) {
            [n] y = mobius.mask.SlidingWindowMask(m, p)
        }"""
    )
    (refusal,) = AttachFunctions()(model).refusals
    assert refusal.reason == (
        "mobius.mask::SlidingWindowMask (node 'n') lacks the attribute 'window' that the body "
        "needs."
    )


def test_one_misfit_keeps_the_body_from_all_calls() -> None:
    """A function is found by domain and name alone."""
    model = _model(f"t = {SKIP}(a, b, w)  y = {SKIP}(t, b, w, w)")
    result = AttachFunctions()(model)
    assert len(result.refusals) == 1
    assert not model.functions
    assert len(model.graph[0].outputs) == 1


def test_older_opset() -> None:
    """Bodies exist from opset 17 on."""
    model = _model(
        "[n] y = com.microsoft.QuickGelu(a)",
        header='<ir_version: 10, opset_import: ["": 16, "com.microsoft": 1]>',
    )
    (refusal,) = AttachFunctions()(model).refusals
    assert refusal.reason == (
        "The model imports opset 16 of ONNX; bodies are written for 17 and later."
    )


def test_calls_in_subgraphs_and_functions() -> None:
    """C105: whoever calls imports the domain, and so does the model."""
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 23, "local": 1]>
        g (float[N] x, bool c) => (float[N] y) {
            t = If (c) <
                then_branch = a () => (float[N] p) { p = com.microsoft.QuickGelu(x) },
                else_branch = b () => (float[N] q) { q = Identity(x) }
            >
            y = local.Twice(t)
        }
        <opset_import: ["": 23], domain: "local">
        Twice (x) => (y) { y = com.microsoft.BiasGelu(x, x) }"""
    )
    assert AttachFunctions()(model).modified
    assert {key[:2] for key in model.functions} == {
        ("local", "Twice"),
        ("com.microsoft", "QuickGelu"),
        ("com.microsoft", "BiasGelu"),
    }
    assert model.opset_imports["com.microsoft"] == 1
    assert model.functions["local", "Twice", ""].opset_imports["com.microsoft"] == 1
    _check(model)


def test_bodies_that_call_each_other() -> None:
    """A body's own calls get their bodies."""

    def outer(opset_version: int) -> ir.Function:
        x = ir.Value(name="X")
        node = ir.node("QuickGelu", [x], domain="com.microsoft")
        graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": opset_version})
        return ir.Function("local", "Outer", graph=graph, attributes=())

    table = {("local", "Outer"): outer, **FUNCTIONS}
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 23, "local": 1]>
        g (float[N] x) => (float[N] y) { y = local.Outer(x) }"""
    )
    assert AttachFunctions(table)(model).modified
    assert ("com.microsoft", "QuickGelu", "") in model.functions
    _check(model)


def test_call_of_a_present_body_is_written_out() -> None:
    """Whatever renamed or added a call after the body was attached."""
    model = _model(f"t = {SKIP} <epsilon = 0.1> (a, b, w)  y = Neg(t)")
    AttachFunctions()(model)
    call = model.graph[0]
    call.outputs[1].name = "renamed"
    assert AttachFunctions()(model).modified
    assert [value.name for value in call.outputs][1:3] == ["", ""]
    assert not AttachFunctions()(model).modified
    _check(model)


def test_function_of_the_model_stays() -> None:
    """A body that came with the model is the model's business."""
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>
        g (float[N] x) => (float[N] y) { y = com.microsoft.QuickGelu(x) }
        <opset_import: ["": 23], domain: "com.microsoft">
        QuickGelu (x) => (y) { y = Identity(x) }"""
    )
    assert not AttachFunctions()(model).modified
    assert [node.op_type for node in model.functions["com.microsoft", "QuickGelu", ""]] == [
        "Identity"
    ]
