"""Lowering rows: which nodes they look at, and models that cannot be brought down."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir
import pytest
from onnxscript.rewriter import pattern

from mobius.lowerings import BOOLEAN_MASK, LOWERINGS
from mobius.op_support import SINCE_VERSION
from mobius.optimizer import optimize_model
from mobius.restricted_rules import restricted
from mobius.roles import Role
from mobius.stage import Target
from mobius_eps import EpCapabilities, Lack, get_ep
from mobius_ir_rules.lowering.opset import OpsetError
from mobius_ir_rules.lowering.swish import swish_to_primitives_rules
from mobius_ir_rules.match_log import refusals
from mobius_ir_rules.passes import InvariantError
from mobius_ir_rules.testing import op_counts

F16, F32 = ir.DataType.FLOAT16, ir.DataType.FLOAT


def model_of(
    body: str, opset: int = 24, inputs: str = "float[N, 8] x", result: str = ""
) -> ir.Model:
    return ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>
        g ({inputs}) => ({result or "float[N, 8] y"}) {{ {body} }}"""
    )


def test_each_row_is_of_another_operator() -> None:
    assert len({each.stage_name for each in LOWERINGS}) == len(LOWERINGS)
    # What an older opset lacks has a row that takes it apart.
    assert set(SINCE_VERSION) <= {(each.domain, each.op_type) for each in LOWERINGS}


@pytest.mark.parametrize("row", LOWERINGS, ids=lambda row: row.stage_name)
def test_a_row_is_needed_where_something_is_lacking(row) -> None:
    def needed(*lacks: Lack, dtype: ir.DataType = F32) -> bool:
        return row.needed(Target(EpCapabilities(name="my-ep", lacks=lacks), dtype, Role.DECODER))

    assert not needed()
    assert needed(Lack(row.op_type, row.domain))
    assert needed(Lack(row.op_type, row.domain, {F32}))
    assert not needed(Lack(row.op_type, row.domain, {F16}))
    assert needed(Lack(row.op_type, row.domain, attribute="some"))


BOOL_MASK = Lack("Attention", attribute="attn_mask", input_dtypes={ir.DataType.BOOL})


def attention(attributes: str = "") -> ir.Model:
    return model_of(
        f"y = Attention <q_num_heads = 2, kv_num_heads = 2{attributes}> (x, x, x, mask)",
        inputs="float[B, S, 8] x, bool[B, 1, S, S] mask",
        result="float[B, S, 8] y",
    )


def test_a_boolean_mask_alone_is_changed_and_attention_stays() -> None:
    target = EpCapabilities(name="my-ep", lacks=[BOOL_MASK])
    assert BOOLEAN_MASK.needed(Target(target, F32, Role.DECODER))
    assert not BOOLEAN_MASK.needed(Target(target, F32, Role.DECODER, opset=22))
    model = attention()
    report = optimize_model(model, target, F32)
    stage = report.stage("LowerBooleanMask")
    assert stage is not None
    assert stage.applications == 1
    assert op_counts(model)["Attention"] == 1
    (node,) = (node for node in model.graph if node.op_type == "Attention")
    mask = node.inputs[3]
    assert mask is not None
    assert mask.dtype == F32


def test_a_boolean_mask_that_cannot_be_changed_is_written_in_primitives() -> None:
    model = attention(", is_causal = 1")
    report = optimize_model(model, EpCapabilities(name="my-ep", lacks=[BOOL_MASK]), F32)
    assert [each.op_type for each in report.refusals] == ["Attention"]
    assert op_counts(model)["Attention"] == 0


def test_a_target_that_lacks_attention_has_no_use_for_another_mask() -> None:
    target = EpCapabilities(name="my-ep", lacks=[BOOL_MASK, Lack("Attention")])
    assert not BOOLEAN_MASK.needed(Target(target, F32, Role.DECODER))
    assert not BOOLEAN_MASK.needed(Target(get_ep("cuda"), F32, Role.DECODER))


def test_only_what_the_target_does_not_run_is_taken_apart() -> None:
    half = dataclasses.replace(get_ep("default"), lacks=[Lack("Gelu", dtypes={F16})])
    model = model_of(
        "h = Gelu (x)  y = Gelu (z)",
        inputs="float16[N, 8] x, float[N, 8] z",
        result="float16[N, 8] h, float[N, 8] y",
    )
    optimize_model(model, half, F16)
    names = {value.name: node.op_type for node in model.graph for value in node.outputs}
    assert names["y"] == "Gelu"
    # In com.microsoft's form, because that is not what is lacking.
    assert op_counts(model)["com.microsoft::Gelu"] == 1


def test_gelu_for_a_target_that_has_one_of_two_forms() -> None:
    # One rule makes both of com.microsoft's; a target with one of them gets primitives.
    lacks = [Lack("Gelu"), Lack("FastGelu", "com.microsoft")]
    model = model_of("y = Gelu (x)")
    optimize_model(model, EpCapabilities(name="my-ep", lacks=lacks), F32)
    assert op_counts(model)["Erf"] == 1


def test_a_restricted_rule_is_neither_applied_nor_refused_elsewhere() -> None:
    model = model_of("a = Swish (x)  y = Swish <alpha = 2.0> (a)")
    rules = restricted(swish_to_primitives_rules(), lambda node: "alpha" in node.attributes)
    assert [rule.name for rule in rules] == [each.name for each in swish_to_primitives_rules()]
    assert refusals(model, rules) == []
    for rule in rules:
        assert rule.apply_to_model(model) == 1
    assert op_counts(model)["Swish"] == 1
    assert op_counts(model)["Sigmoid"] == 1


def test_only_rules_of_one_root_can_be_restricted() -> None:
    rule = pattern.RewriteRule(lambda op, x: op.Neg(x), lambda op, x: op.Abs(x))
    with pytest.raises(TypeError, match=r"is no mobius_ir_rules\.Rule"):
        restricted([rule], bool)


SCATTER = "y = TensorScatter (x, u)"
SCATTERED = "float[B, H, T, 8] x, float[B, H, S, 8] u"


def test_a_model_that_cannot_be_brought_down_stays_and_says_why() -> None:
    model = model_of(SCATTER, inputs=SCATTERED, result="float[B, H, T, 8] y")
    with pytest.warns(UserWarning, match="1 TensorScatter nodes stay that ep='dml' lacks"):
        report = optimize_model(model, "dml", F32)
    assert model.opset_imports[""] == 24
    stage = report.stage("LowerOpset")
    assert stage is not None
    assert [each.op_type for each in stage.refusals] == ["TensorScatter"]


def test_an_opset_that_the_user_asks_for_is_an_error_where_it_cannot_be() -> None:
    # C078: naive lowering breaks operators that need the newer opset.
    model = model_of(SCATTER, inputs=SCATTERED, result="float[B, H, T, 8] y")
    with pytest.raises(OpsetError, match="Cannot lower the model from opset 24 to 23"):
        optimize_model(model, "default", F32, opset=23)


# A GELU written out: the operator for it is in opset 20.
ERF = """
    s = Constant <value = float {1.41421356}> ()
    one = Constant <value = float {1.0}> ()
    half = Constant <value = float {0.5}> ()
    d = Div (x, s)  e = Erf (d)  p = Add (e, one)  m = Mul (x, p)  y = Mul (m, half)
"""


@pytest.mark.parametrize("opset", [13, 18, 20, 24])
@pytest.mark.parametrize("ep", ["default", "dml", "onnx-standard"])
def test_an_older_model_is_raised_to_what_the_target_runs(ep: str, opset: int) -> None:
    model = model_of(ERF, opset)
    report = optimize_model(model, ep, F32)
    assert model.opset_imports[""] == get_ep(ep).max_opset
    assert (report.stage("RaiseOpset") is not None) == (opset < 24)
    counts = op_counts(model)
    assert counts["com.microsoft::Gelu" if ep == "dml" else "Gelu"] == 1
    assert counts["Erf"] == 0


@pytest.mark.parametrize("opset", [17, 18, 20])
def test_no_model_is_raised_above_what_the_user_allows(opset: int) -> None:
    model = model_of(ERF, 17)
    optimize_model(model, "onnx-standard", F32, opset=opset)
    assert model.opset_imports[""] == opset
    counts = op_counts(model)
    assert (counts["Gelu"], counts["Erf"]) == ((1, 0) if opset == 20 else (0, 1))


def test_a_model_that_cannot_be_raised_stays_as_old_as_it_is_and_says_why() -> None:
    body = f"{ERF}  [sample] z = GridSample (i, g)"
    inputs = "float[N, 8] x, float[N, 1, 4, 4] i, float[N, 2, 2, 2] g"
    model = model_of(body, 18, inputs, "float[N, 8] y, float[N, 1, 2, 2] z")
    report = optimize_model(model, "default", F32)
    assert model.opset_imports[""] == 18
    stage = report.stage("RaiseOpset")
    assert stage is not None
    (refusal,) = stage.refusals
    assert (refusal.node, refusal.reason) == (
        "sample",
        "The definition of GridSample changed in opset 22; one that holds from opset 18 on is "
        "needed.",
    )
    assert op_counts(model)["Erf"] == 1
    assert report.stage("GeluFusion") is None


def test_what_no_body_expands_is_refused_with_the_reason() -> None:
    """Bodies are written for opset 17 and later; this model stays older."""
    body = "a = com.microsoft.QuickGelu (x)  z = Upsample (a, a)  y = Identity (a)"
    model = model_of(body, 13)
    with pytest.raises(InvariantError) as error:
        optimize_model(model, "onnx-standard", F32)
    message = str(error.value)
    assert "is com.microsoft::QuickGelu, and neither is its domain one of ['']" in message
    assert (
        "\nWhat could not be written in other operators:\n- RaiseOpset refused 1 Upsample: "
        "Upsample (node 'z') is no operator of opset 13. (first: z)\n- InlinePass refused 1 "
        "com.microsoft::QuickGelu: The model imports opset 13 of ONNX; bodies are written for 17 "
        "and later. (first: "
    ) in message


def test_a_newer_model_is_brought_to_what_the_target_runs() -> None:
    model = model_of("i = Cast <to = 6> (x)  y = Cast <to = 1> (i)", opset=25)
    report = optimize_model(model, "cuda", F32)
    assert model.opset_imports[""] == 24
    assert report.refusals == ()
