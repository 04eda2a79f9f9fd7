"""`QuantizeWeights`: which products and lookups read integers afterwards, and why others do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from mobius_ir_rules.block_quantization import BlockFormat, dequantize_rows, quantize_rows
from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.lazy import DerivedTensor, weight_values
from mobius_ir_rules.passes import FoldWeights
from mobius_ir_rules.passes.quantize_weights import (
    Choose,
    QuantizeResult,
    QuantizeWeights,
    UseKind,
    WeightUse,
)
from mobius_ir_rules.testing import op_counts, run_model

FORM = BlockFormat(4, 16, True)
IMPORTS = '<ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1, "mobius.moe" : 1]>'
NBITS = "com.microsoft::MatMulNBits"
GATHER = "com.microsoft::GatherBlockQuantized"


def always(use: WeightUse) -> BlockFormat:
    del use
    return FORM


def model_of(text: str, *, loaded: bool = True) -> ir.Model:
    """Return the model in which every input with an upper-case name is a weight."""
    model = ir.from_onnx_text(f"{IMPORTS} {text}")
    random = np.random.default_rng(0)
    for value in [value for value in model.graph.inputs if str(value.name).isupper()]:
        model.graph.inputs.remove(value)
        model.graph.initializers[str(value.name)] = value
        if loaded:
            shape = [int(dim) for dim in value.shape or ()]
            array = random.standard_normal(shape).astype(value.dtype.numpy())  # type: ignore[union-attr]
            value.const_value = ir.tensor(array, name=value.name)
    return model


def quantize(model: ir.Model, choose: Choose = always, level: int = 0) -> QuantizeResult:
    FoldWeights()(model)
    return QuantizeWeights(choose, accuracy_level=level).call(model)


def reasons(result: QuantizeResult) -> list[str]:
    return [refusal.reason for refusal in result.refusals]


def feeds(**arrays: Any) -> dict[str, Any]:
    random = np.random.default_rng(1)
    return {
        name: random.standard_normal(each).astype(np.float32) if isinstance(each, tuple) else each
        for name, each in arrays.items()
    }


X = feeds(x=(2, 3, 32))
PRODUCTS = {
    "right operand": "y = MatMul(x, W)",
    "transposed": "t = Transpose <perm = [1, 0]> (V) y = MatMul(x, t)",
    "transposed without perm": "t = Transpose (V) y = MatMul(x, t)",
    "fused transpose": "y = com.microsoft.FusedMatMul <transB = 1> (x, V)",
    "fused, plain": "y = com.microsoft.FusedMatMul <alpha = 1.0> (x, W)",
    "fused transpose of a transpose": (
        "t = Transpose <perm = [1, 0]> (W) y = com.microsoft.FusedMatMul <transB = 1> (x, t)"
    ),
    "packed": (
        "a = Transpose <perm = [1, 0]> (V) w = Concat <axis = -1> (a, W) "
        "z = MatMul(x, w) y = Slice(z, zero, eight, last)"
    ),
}


@pytest.mark.parametrize("body", PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.parametrize("loaded", [True, False])
def test_products_with_a_weight_in_any_layout(body: str, loaded: bool) -> None:
    text = (
        "g (float[2, 3, 32] x, float[32, 8] W, float[8, 32] V) => (float[2, 3, 8] y) "
        "<int64[1] zero = {0}, int64[1] eight = {8}, int64[1] last = {-1}> {" + body + "}"
    )
    whole = model_of(text)
    if "Slice" in body:
        for name, number in (("zero", 0), ("eight", 8), ("last", -1)):
            whole.graph.initializers[name].const_value = ir.tensor([number], ir.DataType.INT64)
    data = {name: value.const_value for name, value in whole.graph.initializers.items()}
    for name in "WV":  # rounded beforehand, along K
        array = data[name].numpy()  # type: ignore[union-attr]
        rows = array.T if name == "W" else array
        rows = dequantize_rows(quantize_rows(np.ascontiguousarray(rows), FORM), FORM, 32)
        rounded = np.ascontiguousarray(rows.T if name == "W" else rows)
        whole.graph.initializers[name].const_value = ir.tensor(rounded)
    expected = run_model(whole, X)["y"]

    model = model_of(text, loaded=loaded)
    for name, tensor in data.items():
        if not name.isupper():
            model.graph.initializers[name].const_value = tensor
    result = quantize(model)
    assert (result.modified, result.applications, reasons(result)) == (True, 1, [])
    counts = op_counts(model)
    assert counts[NBITS] == 1
    assert counts["MatMul"] == counts["com.microsoft::FusedMatMul"] == counts["Transpose"] == 0
    for name, value in weight_values(model).items():
        if value.const_value is None:
            value.const_value = data[name]
    assert all(
        isinstance(value.const_value, DerivedTensor)
        for name, value in model.graph.initializers.items()
        if ".qweight" in name
    )
    np.testing.assert_allclose(run_model(model, X)["y"], expected, rtol=1e-5, atol=1e-5)
    again = quantize(model)
    assert (again.modified, again.applications) == (False, 0)


def test_names_types_and_attributes() -> None:
    model = model_of("g (float[B, 32] x, float[32, 8] W) => (float[B, 8] y) { y = MatMul(x, W) }")
    model.graph[0].name = "here"
    quantize(model, lambda use: BlockFormat(8, 32, False), level=4)
    (node,) = model.graph
    assert (node.name, node.op_type, node.domain) == ("here", "MatMulNBits", "com.microsoft")
    assert {name: attribute.as_int() for name, attribute in node.attributes.items()} == {
        "K": 32,
        "N": 8,
        "bits": 8,
        "block_size": 32,
        "accuracy_level": 4,
    }
    assert [value.name for value in node.inputs if value] == [
        "x",
        "W.qweight",
        "W.scales",
        "W.zero_points",
    ]
    (output,) = model.graph.outputs
    assert (output.name, output.dtype, str(output.shape)) == ("y", ir.DataType.FLOAT, "[B,8]")
    assert "W" not in model.graph.initializers


TIED = """g (int64[B, S] ids, float[64, 32] E, float[32] N) => (float[B, S, 64] y) {
  h = Gather <axis = 0> (E, ids)
  n = RMSNormalization <axis = -1> (h, N)
  y = com.microsoft.FusedMatMul <transB = 1> (n, E)
}"""
IDS = feeds(ids=np.array([[3, 60, 0], [9, 9, 1]]))


def of_kind(*kinds: UseKind) -> Choose:
    return lambda use: FORM if use.kind in kinds else None


def test_a_tied_table_is_quantized_once() -> None:
    model = model_of(TIED)
    table = model.graph.initializers["E"].const_value
    assert table is not None
    rows = dequantize_rows(quantize_rows(table.numpy(), FORM), FORM, 32)
    whole = model_of(TIED)
    whole.graph.initializers["E"].const_value = ir.tensor(rows)
    result = quantize(model)
    assert result.applications == 2
    assert op_counts(model) == {GATHER: 1, "RMSNormalization": 1, NBITS: 1}
    assert sorted(model.graph.initializers) == [
        *("E.qweight", "E.rows.qweight", "E.rows.scales", "E.scales", "N")
    ]
    np.testing.assert_allclose(
        run_model(model, IDS)["y"], run_model(whole, IDS)["y"], rtol=1e-5, atol=1e-5
    )


def test_a_tied_head_may_have_integers_beside_the_table() -> None:
    model = model_of(TIED)
    result = quantize(model, of_kind(UseKind.HEAD))
    assert (result.applications, reasons(result)) == (1, [])
    assert op_counts(model) == {"Gather": 1, "RMSNormalization": 1, NBITS: 1}
    assert sorted(model.graph.initializers) == ["E", "E.qweight", "E.scales", "N"]
    run_model(model, IDS)


def test_a_table_is_not_quantized_beside_a_head_of_floats() -> None:
    model = model_of(TIED)
    result = quantize(model, lambda use: FORM if use.kind is UseKind.TABLE else "Not the head.")
    assert result.applications == 0
    assert reasons(result) == [
        "The table 'E' is the weight of com.microsoft::FusedMatMul (node 'y') too, which stays as "
        "it is; a table whose other readers are quantized is needed, because it would be stored "
        "twice.",
        "Not the head.",
    ]
    assert op_counts(model) == {"Gather": 1, "RMSNormalization": 1, "com.microsoft::FusedMatMul": 1}


def test_two_products_share_the_integers_of_a_weight() -> None:
    model = model_of(
        "g (float[B, 32] x, float[32, 8] W) => (float[B, 8] y) "
        "{ a = MatMul(x, W) s = Neg(x) b = MatMul(s, W) y = Sub(a, b) }"
    )
    assert quantize(model).applications == 2
    assert sorted(model.graph.initializers) == ["W.qweight", "W.scales"]


def kinds_of(text: str) -> dict[str, str]:
    found: dict[str, str] = {}

    def choose(use: WeightUse) -> None:
        found[use.names[0]] = use.kind.value

    assert not quantize(model_of(text), choose).modified
    return found


def test_kinds_are_read_from_the_graph() -> None:
    assert kinds_of(
        """g (int64[B, S] ids, int64[B, S] positions, float[64, 32] E, float[16, 32] P,
              float[32] N, float[32, 32] W, float[32, 4] R, float[32, 64] H, float[64] C,
              float[16, 32] T)
           => (float[B, S, 64] y, int64[B, S, 2] chosen) <int64[1] two = {2}> {
          e = Gather <axis = 0> (E, ids)
          p = Gather <axis = 0> (P, positions)
          h = Add(e, p)
          n = RMSNormalization <axis = -1> (h, N)
          cosines = Gather <axis = 0> (T, positions)
          turned = Mul(n, cosines)
          w = MatMul(turned, W)
          r = MatMul(n, R)
          s = Softmax(r)
          best, chosen = TopK <axis = -1> (s, two)
          l = MatMul(w, H)
          b = Add(l, C)
          y = Tanh(b)
        }"""
    ) == {"E": "table", "P": "table", "W": "product", "R": "router", "H": "head"}


def test_a_table_in_front_of_a_product_is_one() -> None:
    assert kinds_of(
        "g (int64[B, S] ids, float[64, 32] E, float[32, 8] W) => (float[B, S, 8] y) "
        "{ h = Gather <axis = 0> (E, ids) w = MatMul(h, W) y = Softmax(w) }"
    ) == {"E": "table", "W": "product"}


REFUSED = {
    "(float[B, 32] x, float[32, 8] W) => (float[B, 8] y) "
    "{ y = com.microsoft.FusedMatMul <alpha = 0.5> (x, W) }": (
        "com.microsoft::FusedMatMul (node 'y') has alpha=0.5; a plain product, or one with "
        "transB, is needed."
    ),
    "(float[32, B] x, float[32, 8] W) => (float[B, 8] y) "
    "{ y = com.microsoft.FusedMatMul <transA = 1> (x, W) }": (
        "com.microsoft::FusedMatMul (node 'y') has transA=1; a plain product, or one with transB, "
        "is needed."
    ),
    "(float[8, B] x, float[32, 8] W) => (float[32, B] y) { y = MatMul(W, x) }": (
        "MatMul (node 'y') has its weight, the initializer 'W', on the left; one on the right is "
        "needed."
    ),
    "(float[32] x, float[32, 8] W) => (float[8] y) { y = MatMul(x, W) }": (
        "MatMul (node 'y') multiplies a vector; 2 or more axes are needed."
    ),
    "(float[2, B, 32] x, float[2, 32, 8] W) => (float[2, B, 8] y) { y = MatMul(x, W) }": (
        "The weight of MatMul (node 'y'), the initializer 'W', is FLOAT [2,32,8]; a matrix of "
        "FLOAT, FLOAT16 or BFLOAT16 is needed."
    ),
    "(double[B, 32] x, double[32, 8] W) => (double[B, 8] y) { y = MatMul(x, W) }": (
        "The weight of MatMul (node 'y'), the initializer 'W', is DOUBLE [32,8]; a matrix of "
        "FLOAT, FLOAT16 or BFLOAT16 is needed."
    ),
    "(float[B, 32] x, float[32, 8] W) => (float[B, 8] y, float[32, 8] z) "
    "{ y = MatMul(x, W) z = Neg(W) }": (
        "The weight 'W' of MatMul (node 'y') is read by Neg (node 'z') too; products, lookups and "
        "experts alone are needed, because it would be stored twice."
    ),
    "(int64[B] ids, float[64, 24] E, float[24] N) => (float[B, 24] y) "
    "{ h = Gather <axis = 0> (E, ids) y = RMSNormalization <axis = -1> (h, N) }": (
        "The rows of the table 'E' have 24 numbers; a multiple of the block size, 16, is needed."
    ),
    "(float[B, 32] x, float[B, 4] r, float[4, 64, 32] A, float[4, 32, 64] B) => (float[B, 32] y) "
    "{ y = com.microsoft.MoE <k = 2> (x, r, A, , B) }": (
        "The weights of several experts are in one tensor; matrices are needed."
    ),
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.items(), ids=range(len(REFUSED)))
def test_what_cannot_be_quantized_stays_and_is_reported(text: str, reason: str) -> None:
    model = model_of(f"g {text}")
    before = op_counts(model)
    result = quantize(model)
    assert reasons(result) == [reason]
    assert (result.modified, result.applications) == (False, 0)
    assert op_counts(model) == before
    (refusal,) = result.refusals
    assert refusal.rule == "QuantizeWeights"
    assert refusal.node in ("h", "y")


EXPERTS = """g (float[T, 32] x, int64[T, 2] chosen, float[T, 2] share, float[4, 48, 32] F,
                  float[4, 32, 24] G, float[4, 48] B) => (float[T, 32] y) {
  [experts] y = mobius.moe.RoutedExperts <k = 2, activation_type = "swiglu", swiglu_fusion = 2> (
      x, chosen, share, F, G, B)
}"""
EXPERTS_16 = EXPERTS.replace("32, 24]", "32, 16]").replace("48", "32")


def experts_of(text: str, *, loaded: bool = True) -> tuple[ir.Model, ir.Node]:
    model = model_of(text, loaded=loaded)
    (node,) = [node for node in model.graph if node.op_type == "RoutedExperts"]
    return model, node


EXPERT_FEEDS = feeds(
    x=(5, 32),
    chosen=np.array([[0, 1], [3, 2], [1, 3], [2, 0], [0, 3]]),
    share=np.random.default_rng(3).uniform(0.1, 1.0, (5, 2)).astype(np.float32),
)


@pytest.mark.parametrize("form", [FORM, BlockFormat(8, 16, False)])
@pytest.mark.parametrize("loaded", [True, False])
def test_experts(form: BlockFormat, loaded: bool) -> None:
    whole, _ = experts_of(EXPERTS_16)
    data = {name: value.const_value for name, value in whole.graph.initializers.items()}
    for name in "FG":  # rounded beforehand, along the last axis
        array = data[name].numpy()  # type: ignore[union-attr]
        rows = array.reshape(-1, array.shape[-1])
        rows = dequantize_rows(quantize_rows(rows, form), form, rows.shape[1])
        whole.graph.initializers[name].const_value = ir.tensor(rows.reshape(array.shape))
    AttachFunctions()(whole)
    expected = run_model(whole, EXPERT_FEEDS)["y"]
    assert np.abs(expected).max() > 1.0

    model, node = experts_of(EXPERTS_16, loaded=loaded)
    seen: list[WeightUse] = []

    def choose(use: WeightUse) -> BlockFormat:
        seen.append(use)
        return form

    result = quantize(model, choose)
    assert (result.modified, result.applications, reasons(result)) == (True, 2, [])
    assert seen == [
        WeightUse(("F",), UseKind.EXPERTS, 4 * 32, 32),
        WeightUse(("G",), UseKind.EXPERTS, 4 * 32, 16),
    ]
    names = [None if value is None else str(value.name) for value in node.inputs]
    zeros = [] if form.symmetric else ["F.zero_points", "G.zero_points"]
    operands = ["F.qweight", "G.qweight", "B", None, "F.scales", "G.scales", *zeros]
    assert names == ["x", "chosen", "share", *operands]
    assert {"F", "G"}.isdisjoint(model.graph.initializers)
    for name, value in weight_values(model).items():
        if value.const_value is None:
            value.const_value = data[name]
    AttachFunctions()(model)
    np.testing.assert_allclose(run_model(model, EXPERT_FEEDS)["y"], expected, rtol=1e-5, atol=1e-5)
    again = quantize(model, choose)
    assert (again.modified, again.applications, again.refusals) == (False, 0, ())


def test_a_body_of_calls_with_floats_goes() -> None:
    model, _ = experts_of(EXPERTS_16)
    AttachFunctions()(model)
    before = run_model(model, EXPERT_FEEDS)["y"]
    quantize(model)
    assert ("mobius.moe", "RoutedExperts", "") not in model.functions
    AttachFunctions()(model)
    assert (
        0.0
        < np.abs(run_model(model, EXPERT_FEEDS)["y"] - before).max()
        < 0.5 * np.abs(before).max()
    )


def test_experts_whose_rows_are_no_whole_number_of_blocks_stay() -> None:
    """Each of the two weights is decided about by itself."""
    model, node = experts_of(EXPERTS)
    result = quantize(model)
    assert result.applications == 1
    assert reasons(result) == [
        "The rows of the weight of experts 'G' have 24 numbers; a multiple of the block size, 16, "
        "is needed."
    ]
    assert [str(value.name) for value in node.inputs[3:5] if value] == ["F.qweight", "G"]
    AttachFunctions()(model)
    assert np.isfinite(run_model(model, EXPERT_FEEDS)["y"]).all()


def test_experts_that_are_left_out_or_read_by_others_stay() -> None:
    def but_g(use: WeightUse) -> BlockFormat | str:
        return "Not this one." if use.names == ("G",) else FORM

    model, _ = experts_of(
        EXPERTS_16.replace("(float[T, 32] y)", "(float[T, 32] y, float[4, 32, 32] z)").replace(
            "B)\n}", "B)\n z = Neg(F)\n}"
        )
    )
    result = quantize(model, but_g)
    assert (result.modified, result.applications) == (False, 0)
    assert reasons(result) == [
        "The weight 'F' of mobius.moe::RoutedExperts (node 'experts') is read by Neg (node 'z') "
        "too; products, lookups and experts alone are needed, because it would be stored twice.",
        "Not this one.",
    ]


def test_experts_that_a_caller_may_replace_stay() -> None:
    model, _ = experts_of(EXPERTS_16)
    model.graph.inputs.append(model.graph.initializers["F"])
    assert reasons(quantize(model)) == [
        "The weight 'fc1' of mobius.moe::RoutedExperts (node 'experts'), the graph input 'F', is "
        "FLOAT [4,32,32]; a constant of FLOAT, FLOAT16 or BFLOAT16 with a matrix for each expert "
        "is needed."
    ]


def test_a_weight_that_a_caller_may_replace_stays() -> None:
    model = model_of("g (float[B, 32] x, float[32, 8] W) => (float[B, 8] y) { y = MatMul(x, W) }")
    model.graph.inputs.append(model.graph.initializers["W"])
    assert reasons(quantize(model)) == [
        "The weight of MatMul (node 'y'), 'W', is an input of the graph, which a caller may "
        "replace; a constant is needed."
    ]


def test_products_of_two_computed_values_are_not_mentioned() -> None:
    model = model_of(
        "g (float[B, S, 32] x, float[B, 32, S] z) => (float[B, S, S] y) { y = MatMul(x, z) }"
    )
    result = quantize(model)
    assert (result.modified, result.refusals) == (False, ())


def test_subgraphs_too() -> None:
    model = model_of(
        """g (bool c, float[2, 32] x, float[32, 8] W) => (float[2, 8] y) {
          y = If (c) <
            then_branch = t () => (float[2, 8] a) { a = MatMul(x, W) },
            else_branch = e () => (float[2, 8] b) { b0 = MatMul(x, W) b = Neg(b0) }
          >
        }"""
    )
    values = [value for graph in model.graph.subgraphs() for node in graph for value in node.inputs]
    assert len(values) == 5
    assert quantize(model).applications == 2
    assert sorted(model.graph.initializers) == ["W.qweight", "W.scales"]
    inputs = feeds(c=np.array(True), x=(2, 32))
    run_model(model, inputs)
