"""Boolean masks of Attention: numbers against ONNX Runtime's Attention kernel, every refusal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest

from mobius_ir_rules.functions.masks import causal_mask
from mobius_ir_rules.lowering.boolean_mask import boolean_mask_rules
from mobius_ir_rules.match_log import refusals
from mobius_ir_rules.testing import RuleCase, RuleConformance, op_counts, random_inputs, run_model

CONFORMANCE = RuleConformance(boolean_mask_rules)
DIMS = {"B": 2, "S": 3, "P": 4}
RANDOM = np.random.default_rng(5)
# Rows of nothing: the second query of each.
HIDDEN = np.array([[True, False] * 3 + [True], [False] * 7, [True] + [False] * 6])


def graph(
    mask: str,
    attributes: str = "",
    *,
    rank: int = 3,
    dtype: str = "float",
    outputs: int = 3,
    arguments: str = "q, k, v, mask, pk, pv",
) -> Callable[[], ir.Model]:
    """One Attention of 4 query heads and 2 key/value heads of size 8, with a cache."""
    counts = "q_num_heads = 4, kv_num_heads = 2" if rank == 3 else ""
    shapes = ("B, S, 32", "B, S, 16") if rank == 3 else ("B, 4, S, 8", "B, 2, S, 8")
    settings = ", ".join(part for part in (counts, attributes) if part)
    settings = f"<{settings}>" if settings else ""
    results = ["y", "present_k", "present_v", "qk"][:outputs]
    declared = [
        f"{dtype}[{shapes[0]}] y",
        f"{dtype}[B, 2, T, 8] present_k",
        f"{dtype}[B, 2, T, 8] present_v",
        f"{dtype}[B, 4, S, T] qk",
    ][:outputs]
    text = f"""
        <ir_version: 10, opset_import: ["" : 24]>
        g ({dtype}[{shapes[0]}] q, {dtype}[{shapes[1]}] k, {dtype}[{shapes[1]}] v, {mask} mask,
           {dtype}[B, 2, P, 8] pk, {dtype}[B, 2, P, 8] pv, int64[B] lengths)
        => ({", ".join(declared)}) {{
            [attend] {", ".join(results)} = Attention {settings} ({arguments})
        }}"""
    return lambda: ir.from_proto(onnx.parser.parse_model(text))


def inputs(mask: np.ndarray) -> dict[str, np.ndarray]:
    return {"mask": mask, "lengths": np.array([3, 3], np.int64)}


def case(name: str, build: Callable[[], ir.Model], mask: np.ndarray) -> RuleCase:
    after = {"Attention": 1, "ReduceMax": 1}
    return RuleCase(name, build, after=after, dims=DIMS, inputs=inputs(mask))


@pytest.mark.parametrize("attributes", ["", "scale = 0.7", "softcap = 1.5"])
@pytest.mark.parametrize(
    ("rank", "mask", "shape"),
    [
        (3, "bool[B, 1, S, T]", (2, 1, 3, 7)),
        (3, "bool[1, S, T]", (1, 3, 7)),
        (3, "bool[S, T]", (3, 7)),
        (4, "bool[B, 1, S, T]", (2, 1, 3, 7)),
        (4, "bool[B, 4, S, T]", (2, 4, 3, 7)),
        (4, "bool[4, S, T]", (4, 3, 7)),
        (4, "bool[S, T]", (3, 7)),
    ],
)
def test_numbers_of_rows_that_see_nothing_too(rank, mask, shape, attributes):
    """Case C039: such a row is zeros, as the kernel has it."""
    values = np.broadcast_to(HIDDEN, shape).copy()
    values[..., 0, 2:4] ^= RANDOM.random((*shape[:-2], 2)) < 0.5
    build = graph(mask, attributes, rank=rank)
    CONFORMANCE.check(case(mask, build, values))
    model = build()
    given = random_inputs(model, DIMS, inputs(values))
    CONFORMANCE.apply(model)
    found = run_model(model, given)["y"]
    rows = found.swapaxes(1, 2) if rank == 4 else found
    assert np.isfinite(found).all()
    assert not rows[:, 1].any()
    assert rows[:, 2].all()


def test_a_mask_for_fewer_keys_is_padded_by_the_operator():
    """ONNX Runtime takes no such mask; the reference evaluator does."""
    model = graph("bool[S, 5]")()
    given = random_inputs(model, DIMS, inputs(HIDDEN[:, :5]))
    before = onnx.reference.ReferenceEvaluator(ir.to_proto(model)).run(None, given)
    assert CONFORMANCE.apply(model) == 1
    after = onnx.reference.ReferenceEvaluator(ir.to_proto(model)).run(None, given)
    assert not before[0][:, 1].any()
    np.testing.assert_allclose(after[0], before[0], rtol=2e-5, atol=2e-5)


def test_half_precision():
    build = graph("bool[S, T]", dtype="float16")
    CONFORMANCE.check(case("float16", build, HIDDEN))


def test_one_output():
    model = graph("bool[S, T]", outputs=1)()
    assert CONFORMANCE.apply(model) == 1
    attention = next(node for node in model.graph if node.op_type == "Attention")
    assert len(attention.outputs) == 1


@pytest.mark.parametrize("mask", ["float[S, T]", "float[B, 1, S, T]"])
def test_other_masks_stay(mask):
    values = RANDOM.standard_normal((3, 7) if mask == "float[S, T]" else (2, 1, 3, 7))
    given = inputs(values.astype(np.float32))
    CONFORMANCE.check(RuleCase(mask, graph(mask), 0, dims=DIMS, inputs=given))


def test_a_mask_operator_shows_each_query_a_key():
    """No zeros to put back; two layers share one bias once equal nodes are merged."""
    model = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["" : 24, "mobius.mask" : 1]>
        g (float[B, S, 32] q, float[B, S, 16] k, float[B, S, 16] v, int64[B, S] attention_mask,
           int64[B, S] position_ids) => (float[B, S, 32] y)
        <bool[B, 1, S, S] mask> {
            mask = mobius.mask.CausalMask (attention_mask, position_ids)
            y = Attention <q_num_heads = 4, kv_num_heads = 2> (q, k, v, mask)
        }""")
    body = causal_mask(24)
    model.functions[body.identifier()] = body
    given = random_inputs(
        model,
        {"B": 2, "S": 5},
        {
            "attention_mask": np.array([[1] * 5, [0, 0, 1, 1, 1]]),
            "position_ids": np.array([[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]]),
        },
    )
    before = run_model(model, given)["y"]
    assert CONFORMANCE.apply(model) == 1
    counts = op_counts(model)
    assert counts["Where"] == counts["Attention"] == counts["mobius.mask::CausalMask"] == 1
    np.testing.assert_allclose(run_model(model, given)["y"], before, rtol=2e-5, atol=2e-5)


ATTEND = "Attention (node 'attend')"
BESIDE = "beside its boolean mask; that both leave a key to each query is not proved."
REFUSED = {
    f"{ATTEND} has is_causal {BESIDE}": graph("bool[S, T]", "is_causal = 1"),
    f"{ATTEND} has nonpad_kv_seqlen {BESIDE}": graph(
        "bool[S, S]", outputs=1, arguments="q, k, v, mask, , , lengths"
    ),
    f"The output qk_matmul_output of {ATTEND} is used; it would show finite numbers in place of "
    "minus infinity.": graph("bool[S, T]", outputs=4),
    f"That the heads of {ATTEND} share the mask, the graph input 'mask', is not proved; its "
    "result has them side by side, so that they must.": graph("bool[B, 4, S, T]"),
    f"The query of {ATTEND} has rank 3, and its mask, the graph input 'mask', 1; 3 or 4, and 2 to "
    "4, are needed.": graph("bool[T]"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals(reason):
    CONFORMANCE.check(RuleCase("refused", REFUSED[reason], 0, (reason,), compare=False))


def test_unknown_type_is_refused():
    def build() -> ir.Model:
        model = graph("bool[S, T]")()
        neg = ir.node("Custom", [model.graph.inputs[0]], domain="test")
        model.graph.insert_before(model.graph.node(0), neg)
        model.graph.node(1).replace_input_with(0, neg.outputs[0])
        model.opset_imports["test"] = 1
        return model

    reason = f"The element type of the query of {ATTEND} is not known; the mask takes it."
    CONFORMANCE.check(RuleCase("untyped", build, 0, (reason,), compare=False, nested=False))


@pytest.mark.parametrize("window", ["left_window_size", "right_window_size"])
def test_windows_of_opset_25_are_refused(window):
    model = graph("bool[S, T]")()
    model.graph.node(0).attributes.add(ir.AttrInt64(window, 2))
    (refusal,) = refusals(model, boolean_mask_rules())
    assert refusal.reason == f"{ATTEND} has {window} {BESIDE}"
