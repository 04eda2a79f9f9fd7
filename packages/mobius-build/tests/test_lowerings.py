"""Lowering rows: which nodes they look at, and models that cannot be brought down."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir
import pytest
from onnxscript.rewriter import pattern

from mobius.lowerings import LOWERINGS
from mobius.op_support import SINCE_VERSION
from mobius.optimizer import optimize_model
from mobius.restricted_rules import restricted
from mobius.roles import Role
from mobius.stage import Target
from mobius_eps import EpCapabilities, Lack, get_ep
from mobius_ir_rules.lowering.opset import OpsetError
from mobius_ir_rules.lowering.swish import swish_to_primitives_rules
from mobius_ir_rules.match_log import refusals
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


@pytest.mark.parametrize("opset", [18, 20, 24])
@pytest.mark.parametrize("ep", ["default", "dml", "onnx-standard"])
def test_an_older_model_stays_as_old_as_it_is(ep: str, opset: int) -> None:
    # A GELU written out: the operator for it is in opset 20.
    body = """
        s = Constant <value = float {1.41421356}> ()
        one = Constant <value = float {1.0}> ()
        half = Constant <value = float {0.5}> ()
        d = Div (x, s)  e = Erf (d)  p = Add (e, one)  m = Mul (x, p)  y = Mul (m, half)
    """
    model = model_of(body, opset)
    optimize_model(model, ep, F32)
    assert model.opset_imports[""] == min(opset, get_ep(ep).max_opset)
    counts = op_counts(model)
    if ep == "dml":
        assert counts["com.microsoft::Gelu"] == (opset >= 20)
    else:
        assert counts["Gelu"] == (opset >= 20)
    assert counts["Erf"] == (opset < 20)


def test_a_newer_model_is_brought_to_what_the_target_runs() -> None:
    model = model_of("i = Cast <to = 6> (x)  y = Cast <to = 1> (i)", opset=25)
    report = optimize_model(model, "cuda", F32)
    assert model.opset_imports[""] == 24
    assert report.refusals == ()
