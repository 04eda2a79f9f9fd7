"""Attention to primitives: numbers against ONNX Runtime's Attention kernel, and every refusal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest

from mobius_ir_rules.lowering.attention import attention_to_primitives_rules
from mobius_ir_rules.testing import RuleCase, RuleConformance, op_counts, random_inputs, run_model

CONFORMANCE = RuleConformance(attention_to_primitives_rules)
DIMS = {"B": 2, "S": 3, "P": 4}
RANDOM = np.random.default_rng(5)
MASKS = {
    "bool[B, 1, S, T] mask": RANDOM.random((2, 1, 3, 7)) < 0.6,
    "bool[S, T] mask": RANDOM.random((3, 7)) < 0.6,
    "float[B, 4, S, T] mask": RANDOM.standard_normal((2, 4, 3, 7)).astype(np.float32),
    "float[1, 1, S, T] mask": RANDOM.standard_normal((1, 1, 3, 7)).astype(np.float32),
    "float[4, S, T] mask": RANDOM.standard_normal((4, 3, 7)).astype(np.float32),
    "bool[1, S, T] mask": RANDOM.random((1, 3, 7)) < 0.6,
    "bool[B, N, M, T] mask": RANDOM.random((2, 1, 3, 7)) < 0.6,
    "float[1, 1, M, T] mask": RANDOM.standard_normal((1, 1, 3, 7)).astype(np.float32),
}
# A row of nothing but minus infinity, and one that is so where causality leaves it.
INFINITE = np.array([[-np.inf] * 7, [-np.inf] * 6 + [0.0], [0.5] * 3 + [-np.inf] * 4], np.float32)
ALL_MASKED = np.array([[True] * 7, [False] * 7, [True] + [False] * 6])


def graph(
    mask: str = "",
    attributes: str = "",
    past: bool = True,
    heads: tuple[int, int] = (4, 2),
    sizes: tuple[int, int] = (8, 8),
    rank: int = 3,
    dtype: str = "float",
) -> Callable[[], ir.Model]:
    """A single Attention node with all its outputs."""
    (query_heads, kv_heads), (size, value_size) = heads, sizes

    def declare(name: str, count: int, width: int) -> str:
        shape = f"B, S, {count * width}" if rank == 3 else f"B, {count}, S, {width}"
        return f"{dtype}[{shape}] {name}"

    inputs = [
        declare("q", query_heads, size),
        declare("k", kv_heads, size),
        declare("v", kv_heads, value_size),
    ]
    if mask:
        inputs.append(mask)
    if past:
        inputs += [
            f"{dtype}[B, {kv_heads}, P, {size}] pk",
            f"{dtype}[B, {kv_heads}, P, {value_size}] pv",
        ]
    total = "T" if past else "S"
    outputs = [
        declare("y", query_heads, value_size),
        f"{dtype}[B, {kv_heads}, {total}, {size}] present_k",
        f"{dtype}[B, {kv_heads}, {total}, {value_size}] present_v",
    ]
    counts = f"q_num_heads: int = {query_heads}, kv_num_heads: int = {kv_heads}"
    declared = [part for part in (counts if rank == 3 else "", attributes) if part]
    signature = f"<{', '.join(declared)}>" if declared else ""
    signature = signature.replace(": int", "").replace(": float", "")
    arguments = f"q, k, v, {'mask' if mask else ''}" + (", pk, pv" if past else "")
    text = f"""
        <ir_version: 10, opset_import: ["" : 24]>
        g ({", ".join(inputs)}) => ({", ".join(outputs)}) {{
            y, present_k, present_v = Attention {signature} ({arguments})
        }}"""
    return lambda: ir.from_proto(onnx.parser.parse_model(text))


CASES = {
    "cache": graph(),
    "no cache": graph(past=False),
    "multi-head": graph(heads=(4, 4)),
    "multi-query": graph(heads=(4, 1)),
    "four-dimensional": graph(rank=4),
    "four-dimensional, no cache": graph(rank=4, past=False),
    "value wider than key": graph(sizes=(8, 16)),
    "scale": graph(attributes="scale = 0.7"),
    "softcap": graph(attributes="softcap = 1.5"),
    "causal": graph(attributes="is_causal = 1"),
    "causal, no cache": graph(attributes="is_causal = 1", past=False),
    "softmax precision": graph(attributes="softmax_precision = 11"),
    **{mask: graph(mask) for mask in MASKS},
    "softcap comes before the mask": graph("float[1, 1, S, T] mask", "softcap = 1.5, scale = 2.0"),
    "bool mask and causal": graph("bool[S, T] mask", "is_causal = 1"),
}


def mask_of(name: str) -> dict[str, np.ndarray]:
    if name == "softcap comes before the mask":
        return {"mask": MASKS["float[1, 1, S, T] mask"]}
    if name == "bool mask and causal":
        return {"mask": MASKS["bool[S, T] mask"]}
    return {"mask": MASKS[name]} if name in MASKS else {}


@pytest.mark.parametrize("name", CASES)
def test_numbers(name):
    CONFORMANCE.check(
        RuleCase(name, CASES[name], after={"Attention": 0}, dims=DIMS, inputs=mask_of(name))
    )


def test_a_fully_masked_row_gives_zeros_as_the_kernel_does():
    """Case C039."""
    build = graph("bool[S, T] mask")
    CONFORMANCE.check(RuleCase("masked", build, dims=DIMS, inputs={"mask": ALL_MASKED}))


@pytest.mark.parametrize("attributes", ["", "is_causal = 1", "softcap = 1.5"])
def test_a_row_of_minus_infinity_gives_zeros_as_the_kernel_does(attributes):
    """Case C039: a floating-point mask of minus infinity."""
    build = graph("float[S, T] mask", attributes)
    case = RuleCase("infinite", build, dims=DIMS, inputs={"mask": INFINITE})
    CONFORMANCE.check(case)
    inputs = random_inputs(build(), DIMS, {"mask": INFINITE})
    model = build()
    assert CONFORMANCE.apply(model) == 1
    found = run_model(model, inputs)["y"]
    assert np.isfinite(found).all()
    assert not found[:, 0].any()
    assert found[:, 2].all()


def test_causal_without_a_cache_starts_at_the_first_key():
    """Case C015: one query and five keys, no cache: the query sees the first key only."""
    text = """
        <ir_version: 10, opset_import: ["" : 24]>
        g (float[B, S, 32] q, float[B, T, 16] k, float[B, T, 16] v) => (float[B, S, 32] y) {
            y = Attention <q_num_heads=4, kv_num_heads=2, is_causal=1> (q, k, v)
        }"""
    case = RuleCase(
        "causal",
        lambda: ir.from_proto(onnx.parser.parse_model(text)),
        dims={"B": 2, "S": 1, "T": 5},
    )
    CONFORMANCE.check(case)


@pytest.mark.parametrize("name", [*MASKS, "causal", "softcap comes before the mask"])
def test_reference_evaluator(name):
    """The second opinion, and the checker's."""
    feeds = random_inputs(CASES[name](), DIMS, mask_of(name))
    model = CASES[name]()
    assert CONFORMANCE.apply(model) == 1
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    before, after = (
        onnx.reference.ReferenceEvaluator(ir.to_proto(m)).run(None, feeds)
        for m in (CASES[name](), model)
    )
    for old, new in zip(before, after, strict=True):
        np.testing.assert_allclose(new, old, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("mask", ["bool[1, T] mask", "bool[B, 1, 1, T] mask", "float[1, T] mask"])
def test_one_row_for_all_queries(mask):
    """A mask of padding only. ONNX Runtime refuses it, the reference evaluator broadcasts it."""
    build = graph(mask)
    shape = [
        {"B": 2, "T": 7}.get(size, 1)
        for size in mask[mask.index("[") + 1 :].split("]")[0].split(", ")
    ]
    values = RANDOM.random(shape) < 0.7 if "bool" in mask else RANDOM.random(shape, np.float32)
    feeds = random_inputs(build(), DIMS, {"mask": values})
    model = build()
    assert CONFORMANCE.apply(model) == 1
    before, after = (
        onnx.reference.ReferenceEvaluator(ir.to_proto(m)).run(None, feeds)[0]
        for m in (build(), model)
    )
    np.testing.assert_allclose(after, before, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("name", "reshapes"),
    [("bool[B, 1, S, T] mask", 0), ("causal", 0), ("cache", 0), ("bool[B, N, M, T] mask", 2)],
)
def test_scores_keep_their_shape_where_heads_share_the_mask(name, reshapes):
    """Some runtimes cannot infer a -1 before a copied size from symbolic ones."""
    model = CASES[name]()
    assert CONFORMANCE.apply(model) == 1
    targets = [
        node.inputs[1].producer().attributes["value"].as_tensor().numpy().tolist()
        for node in model.graph
        if node.op_type == "Reshape"
    ]
    assert sum(target[-2:] == [-1, 0] for target in targets) == reshapes


def test_one_head_for_each_query_head_needs_no_grouping():
    model = CASES["multi-head"]()
    assert CONFORMANCE.apply(model) == 1
    assert op_counts(model)["Reshape"] == 4  # query, key, value and the result


def test_half_precision():
    CONFORMANCE.check(
        RuleCase(
            "f16",
            graph("bool[S, T] mask", dtype="float16"),
            dims=DIMS,
            inputs={"mask": MASKS["bool[S, T] mask"]},
        )
    )


def test_key_and_value_heads_are_not_repeated():
    model = CASES["cache"]()
    assert CONFORMANCE.apply(model) == 1
    counts = op_counts(model)
    assert counts["MatMul"] == 2
    assert not {"Expand", "Tile", "Gather"} & set(counts)


REFUSALS = {
    "Attention has nonpad_kv_seqlen; none is needed.": (
        "float[B, S, 32] q, float[B, S, 16] k, float[B, S, 16] v, int64[B] n",
        "y = Attention <q_num_heads=4, kv_num_heads=2> (q, k, v, , , , n)",
    ),
    "The ranks of query, key and value are 3, 4 and 4; all 3 or all 4 are needed.": (
        "float[B, S, 32] q, float[B, 2, S, 8] k, float[B, 2, S, 8] v",
        "y = Attention <q_num_heads=4> (q, k, v)",
    ),
    "The number of heads of the graph input 'q' is not known; it is needed.": (
        "float[B, S, 32] q, float[B, S, 16] k, float[B, S, 16] v",
        "y = Attention <kv_num_heads=2> (q, k, v)",
    ),
    "The last dimension of the graph input 'v' is not known; it is needed.": (
        "float[B, S, 32] q, float[B, S, 16] k, float[B, S, W] v",
        "y = Attention <q_num_heads=4, kv_num_heads=2> (q, k, v)",
    ),
    "There are 4 query heads and 3 key/value heads; a multiple is needed.": (
        "float[B, S, 32] q, float[B, S, 24] k, float[B, S, 24] v",
        "y = Attention <q_num_heads=4, kv_num_heads=3> (q, k, v)",
    ),
    "Attention has left_window_size = 3; none, or -1, is needed.": (
        "float[B, S, 32] q, float[B, S, 16] k, float[B, S, 16] v",
        "y = Attention <q_num_heads=4, kv_num_heads=2, left_window_size=3> (q, k, v)",
    ),
    "Attention has the attribute sinks; none but those of opset 25 is needed.": (
        "float[B, S, 32] q, float[B, S, 16] k, float[B, S, 16] v",
        "y = Attention <q_num_heads=4, kv_num_heads=2, sinks=1> (q, k, v)",
    ),
    "The mask, the graph input 'm', is for 1 keys of unknown; one for all keys is needed.": (
        "float[B, S, 32] q, float[B, S, 16] k, float[B, S, 16] v, bool[S, 1] m",
        "y = Attention <q_num_heads=4, kv_num_heads=2> (q, k, v, m)",
    ),
    "The mask, the graph input 'm', is for 3 keys of 6; one for all keys is needed.": (
        "float[B, S, 32] q, float[B, 2, 16] k, float[B, 2, 16] v, float[S, 3] m, "
        "float[B, 2, 4, 8] pk, float[B, 2, 4, 8] pv",
        "y = Attention <q_num_heads=4, kv_num_heads=2> (q, k, v, m, pk, pv)",
    ),
    "Only one of past_key and past_value is given; both or none are needed.": (
        "float[B, S, 32] q, float[B, S, 16] k, float[B, S, 16] v, float[B, 2, P, 8] pk",
        "y = Attention <q_num_heads=4, kv_num_heads=2> (q, k, v, , pk)",
    ),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals(reason):
    inputs, node = REFUSALS[reason]
    text = f"""
        <ir_version: 10, opset_import: ["" : 24]>
        g ({inputs}) => (float[B, S, W] y) {{ {node} }}"""
    case = RuleCase(
        reason,
        lambda: ir.from_proto(onnx.parser.parse_model(text)),
        applications=0,
        reasons=(reason,),
        compare=False,
    )
    CONFORMANCE.check(case)


def test_a_used_matrix_of_scores_is_refused():
    text = """
        <ir_version: 10, opset_import: ["" : 24]>
        g (float[B, S, 32] q, float[B, S, 16] k, float[B, S, 16] v)
          => (float[B, S, 32] y, float[B, 4, S, S] scores) {
            y, pk, pv, scores = Attention <q_num_heads=4, kv_num_heads=2> (q, k, v)
        }"""
    reason = "The output qk_matmul_output is used; it must not be."
    CONFORMANCE.check(
        RuleCase(
            "scores",
            lambda: ir.from_proto(onnx.parser.parse_model(text)),
            applications=0,
            reasons=(reason,),
            dims=DIMS,
        )
    )
