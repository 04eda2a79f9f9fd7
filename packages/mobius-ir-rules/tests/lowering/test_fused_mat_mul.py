"""FusedMatMul to primitives: every combination of attributes against ONNX Runtime's kernel."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from mobius_ir_rules.lowering.fused_mat_mul import fused_matmul_to_primitives_rules
from mobius_ir_rules.testing import RuleCase, RuleConformance, op_counts, run_model

CONFORMANCE = RuleConformance(fused_matmul_to_primitives_rules)
FUSED = "com.microsoft::FusedMatMul"


def shape_of(rows: int, columns: int, batch: list[int], transposed: bool, moved: bool) -> list[int]:
    """Return the shape of an operand that is read as `[*batch, rows, columns]`."""
    first, last = (columns, rows) if transposed else (rows, columns)
    return [first, *batch, last] if moved else [*batch, first, last]


def graph(
    a: list[int | str] | None,
    b: list[int | str] | None,
    attributes: str = "",
    dtype: str = "float",
) -> Callable[[], ir.Model]:
    def declare(name: str, shape: list[int | str] | None) -> str:
        dims = "[]" if shape is None else f"[{', '.join(map(str, shape))}]"
        return f"{dtype}{dims} {name}"

    text = f"""
        <ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>
        g ({declare("a", a)}, {declare("b", b)}) => ({dtype}[] y) {{
            [mm] y = com.microsoft.FusedMatMul {attributes} (a, b) }}"""
    return lambda: ir.from_proto(onnx.parser.parse_model(text))


COMBINATIONS = [
    (trans_a, trans_b, batch_a, batch_b, alpha, batch)
    for trans_a, trans_b, alpha in itertools.product([0, 1], [0, 1], [1.0, 0.125])
    for batch, batch_a, batch_b in [([], 0, 0), ([2], 0, 0), ([2, 3], 0, 0), ([2, 3], 1, 1)]
]


@pytest.mark.parametrize(("ta", "tb", "ba", "bb", "alpha", "batch"), COMBINATIONS)
def test_numbers(ta: int, tb: int, ba: int, bb: int, alpha: float, batch: list[int]) -> None:
    """Case C094: operands of rank 2, 3 and 4, and of every layout."""
    a = shape_of(4, 5, batch, bool(ta), bool(ba))
    b = shape_of(5, 6, batch, bool(tb), bool(bb))
    attributes = (
        f"<transA = {ta}, transB = {tb}, transBatchA = {ba}, transBatchB = {bb}, alpha = {alpha}>"
    )
    case = RuleCase(
        attributes,
        graph(a, b, attributes),
        after={
            FUSED: 0,
            "MatMul": 1,
            "Transpose": int(bool(ta or ba)) + int(bool(tb or bb)),
            "Mul": int(alpha != 1.0),
        },
        nested=len(batch) == 1,
    )
    CONFORMANCE.check(case)


def test_broadcast_batches_and_symbolic_sizes() -> None:
    build = graph(["B", "S", 8], [6, 8], "<transB = 1, alpha = 2.0>")
    CONFORMANCE.check(RuleCase("weight", build, after={FUSED: 0}, dims={"B": 2, "S": 3}))
    model = build()
    assert CONFORMANCE.apply(model) == 1
    transposed = next(node for node in model.graph if node.op_type == "Transpose").outputs[0]
    assert transposed.shape == ir.Shape([8, 6])
    assert transposed.dtype == ir.DataType.FLOAT


def test_half_precision_against_numpy() -> None:
    """ONNX Runtime's CPU has FusedMatMul in float32 only."""
    model = graph([2, 5, 4], [2, 5, 6], "<transA = 1, alpha = 0.5>", "float16")()
    assert CONFORMANCE.apply(model) == 1
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(s).astype(np.float16) for s in ([2, 5, 4], [2, 5, 6]))
    expected = 0.5 * (a.astype(np.float32).transpose(0, 2, 1) @ b.astype(np.float32))
    found = run_model(model, {"a": a, "b": b})["y"]
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.astype(np.float32), expected, rtol=1e-2, atol=1e-2)


REFUSALS = {
    "The rank of the graph input 'a' is not known; com.microsoft::FusedMatMul (node 'mm') "
    "transposes it, so that it is needed.": (None, [5, 6], "<transA = 1>"),
    "com.microsoft::FusedMatMul (node 'mm') transposes the graph input 'b', of rank 1; at least 2 "
    "is needed.": ([4, 5], [5], "<transB = 1>"),
    "com.microsoft::FusedMatMul (node 'mm') transposes the graph input 'a', of rank 2; at least 3 "
    "is needed.": ([4, 5], [5, 6], "<transBatchA = 1>"),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals(reason: str) -> None:
    a, b, attributes = REFUSALS[reason]
    build = graph(a, b, attributes)
    CONFORMANCE.check(RuleCase(reason, build, 0, (reason,), after={FUSED: 1}, compare=False))


def test_an_unknown_type_is_refused_where_a_scale_is_needed() -> None:
    def build() -> ir.Model:
        model = graph([4, 5], [5, 6], "<alpha = 0.5>")()
        for value in (*model.graph.inputs, *model.graph.outputs):
            value.type = None
        return model

    reason = (
        "The element type of com.microsoft::FusedMatMul (node 'mm') is not known; it is needed "
        "for the constant alpha = 0.5."
    )
    case = RuleCase("untyped", build, 0, (reason,), compare=False, nested=False)
    CONFORMANCE.check(case)


def test_an_unknown_rank_does_not_matter_without_a_transpose() -> None:
    model = graph(None, None)()
    assert CONFORMANCE.apply(model) == 1
    assert op_counts(model) == {"MatMul": 1}
