"""RotaryEmbedding to primitives and to com.microsoft's: numbers, refusals, both layouts."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest

from mobius_ir_rules.lowering.rotary_embedding import rotary_embedding_to_primitives_rules
from mobius_ir_rules.lowering.rotary_embedding_to_microsoft import (
    rotary_embedding_to_microsoft_rules,
)
from mobius_ir_rules.passes import EliminateCommonSubexpressions
from mobius_ir_rules.testing import RuleCase, RuleConformance, op_counts, random_inputs, run_model

PRIMITIVES = RuleConformance(rotary_embedding_to_primitives_rules)
MICROSOFT = RuleConformance(rotary_embedding_to_microsoft_rules)
CONFORMANCES = {"primitives": PRIMITIVES, "microsoft": MICROSOFT}
NODE = "RotaryEmbedding (node 'rope')"
BATCH, LENGTH, HEADS, SIZE, ROWS = 3, 5, 2, 32, 16
DIMS = {"B": BATCH, "S": LENGTH, "M": ROWS}
# Not 0, 1, 2 ...: each row of the batch has its own (C082), and they repeat and run backwards.
POSITIONS = np.random.default_rng(3).integers(0, ROWS, (BATCH, LENGTH))


def graph(
    rank: int = 3,
    width: int = 0,
    interleaved: int = 0,
    positions: bool = True,
    dtype: str = "float",
    x: str = "",
    table: str = "",
    heads: int = HEADS,
) -> Callable[[], ir.Model]:
    shape = x or (f"[B, S, {HEADS * SIZE}]" if rank == 3 else f"[B, {HEADS}, S, {SIZE}]")
    half = (width or SIZE) // 2
    table = table or (f"[M, {half}]" if positions else f"[B, S, {half}]")
    attributes = [f"interleaved = {interleaved}"]
    attributes += [f"num_heads = {heads}"] if heads and rank == 3 else []
    attributes += [f"rotary_embedding_dim = {width}"] if width else []
    text = f"""
        <ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>
        g ({dtype}{shape} x, {dtype}{table} c, {dtype}{table} s
           {", int64[B, S] p" if positions else ""}) => ({dtype}{shape} y) {{
            [rope] y = RotaryEmbedding <{", ".join(attributes)}>
                (x, c, s{", p" if positions else ""}) }}"""
    return lambda: ir.from_proto(onnx.parser.parse_model(text))


def inputs(positions: bool) -> dict[str, np.ndarray]:
    return {"p": POSITIONS} if positions else {}


CASES = list(itertools.product([3, 4], [0, 16, 20], [0, 1], [True, False]))


@pytest.mark.parametrize("target", CONFORMANCES)
@pytest.mark.parametrize(("rank", "width", "interleaved", "positions"), CASES)
def test_numbers(rank: int, width: int, interleaved: int, positions: bool, target: str) -> None:
    """Cases C081, C082: full and partial, both pairings, tables with and without positions."""
    after = {"RotaryEmbedding": 0}
    if target == "microsoft":
        after["com.microsoft::RotaryEmbedding"] = 1
    case = RuleCase(
        "rotation",
        graph(rank, width, interleaved, positions),
        after=after,
        dims=DIMS,
        inputs=inputs(positions),
    )
    CONFORMANCES[target].check(case)


@pytest.mark.parametrize("target", CONFORMANCES)
@pytest.mark.parametrize("interleaved", [0, 1])
def test_half_precision(interleaved: int, target: str) -> None:
    build = graph(width=16, interleaved=interleaved, dtype="float16")
    case = RuleCase("f16", build, dims=DIMS, inputs=inputs(True))
    CONFORMANCES[target].check(case)


@pytest.mark.parametrize(("rank", "width", "interleaved", "positions"), CASES)
def test_reference_evaluator(rank: int, width: int, interleaved: int, positions: bool) -> None:
    """The second opinion: ONNX's own algorithm, before and after."""
    build = graph(rank, width, interleaved, positions)
    feeds = random_inputs(build(), DIMS, inputs(positions))
    model = build()
    assert PRIMITIVES.apply(model) == 1
    before, after = (
        onnx.reference.ReferenceEvaluator(ir.to_proto(m)).run(None, feeds)[0]
        for m in (build(), model)
    )
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_an_empty_batch_stays_one() -> None:
    model = graph(width=16, interleaved=1)()
    assert PRIMITIVES.apply(model) == 1
    feeds = random_inputs(model, {"B": 0, "S": 4, "M": ROWS}, {"p": np.zeros((0, 4), np.int64)})
    assert run_model(model, feeds)["y"].shape == (0, 4, HEADS * SIZE)


def test_new_values_are_declared() -> None:
    for rank, width, interleaved, positions in CASES:
        model = graph(rank, width, interleaved, positions, dtype="bfloat16")()
        assert PRIMITIVES.apply(model) == 1
        for value in (value for node in model.graph for value in node.outputs):
            assert value.shape is not None
            assert value.dtype in (ir.DataType.BFLOAT16, ir.DataType.INT64)


def test_tables_are_gathered_once_for_query_and_key() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 24]>
        g (float[B, S, 64] q, float[B, S, 32] k, float[M, 16] c, float[M, 16] s, int64[B, S] p)
          => (float[B, S, 64] x, float[B, S, 32] y) {
            x = RotaryEmbedding <num_heads = 2> (q, c, s, p)
            y = RotaryEmbedding <num_heads = 1> (k, c, s, p) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert PRIMITIVES.apply(model) == 2
    EliminateCommonSubexpressions()(model)
    counts = op_counts(model)
    assert (counts["Gather"], counts["Unsqueeze"], counts["Split"]) == (2, 2, 2)


REFUSALS = {
    f"The input of {NODE}, the graph input 'x', has the rank 2; 3 or 4 is needed.": graph(
        x="[S, 64]"
    ),
    f"The tables of {NODE}, with position_ids, have the ranks 3 and 3; 2 is needed for both.": (
        graph(table="[B, S, 16]")
    ),
    f"The tables of {NODE}, without position_ids, have the ranks 2 and 2; 3 is needed for both.": (
        graph(positions=False, table="[S, 16]")
    ),
    f"The last dimension of the input of {NODE}, the graph input 'x', is not known; it is "
    "needed.": graph(x="[B, S, H]"),
    f"{NODE} has num_heads = 0 and an input of the width 64; a divisor of it is needed.": graph(
        heads=0
    ),
    f"{NODE} has num_heads = 3 and an input of the width 64; a divisor of it is needed.": graph(
        heads=3
    ),
    f"{NODE} rotates 40 channels of heads of 32; an even number of at most that size is "
    "needed.": graph(width=40),
    f"{NODE} rotates 15 channels of heads of 32; an even number of at most that size is "
    "needed.": graph(width=15),
    f"{NODE} rotates 16 channels by a table, the graph input 'c', of the width 16; half as many "
    "columns are needed.": graph(width=16, table="[M, 16]"),
}


@pytest.mark.parametrize("target", CONFORMANCES)
@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals(reason: str, target: str) -> None:
    case = RuleCase(
        reason, REFUSALS[reason], 0, (reason,), after={"RotaryEmbedding": 1}, compare=False
    )
    CONFORMANCES[target].check(case)


def test_position_ids_of_another_rank_are_refused() -> None:
    def build() -> ir.Model:
        model = graph()()
        model.graph.inputs[3].shape = ir.Shape(["S"])
        return model

    reason = f"The position_ids of {NODE}, the graph input 'p', have the rank 1; 2 is needed."
    PRIMITIVES.check(RuleCase("rank 1", build, 0, (reason,), compare=False))


def test_partial_rotation_of_an_unknown_number_of_heads() -> None:
    """The primitives need no number of a 4-D input, com.microsoft's operator does."""
    partial, full = (graph(4, width, x="[B, N, S, 32]") for width in (16, 0))
    dims = {**DIMS, "N": HEADS}
    reason = (
        f"{NODE} rotates 16 of 32 channels and its number of heads is not known; it is needed for "
        "a partial rotation."
    )
    PRIMITIVES.check(RuleCase("partial", partial, dims=dims, inputs=inputs(True)))
    MICROSOFT.check(RuleCase("partial", partial, 0, (reason,), dims=dims, inputs=inputs(True)))
    MICROSOFT.check(RuleCase("full", full, dims=dims, inputs=inputs(True)))
