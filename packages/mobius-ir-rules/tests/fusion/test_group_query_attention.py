"""GQAFusion: numbers against the unfused graph on ONNX Runtime's CPU, and every refusal."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript.rewriter import rewrite

from mobius_ir_rules.fusion.group_query_attention import group_query_attention_rules
from mobius_ir_rules.match_log import refusals
from mobius_ir_rules.testing import RuleCase, RuleConformance, op_counts, run_model

GQA = "com.microsoft::GroupQueryAttention"
CONFORMANCE = RuleConformance(group_query_attention_rules)
NO_BIAS = RuleConformance(lambda: group_query_attention_rules(refuse_attributes={"attention_bias"}))
LEFT = RuleConformance(lambda: group_query_attention_rules(padding_side="left"))

FUSED: dict[str, dict[str, Any]] = {
    "head 16": {},
    "head 32": {"head_size": 32, "rotary": 32},
    "interleaved": {"interleaved": 1},
    "partial": {"head_size": 32},
    "partial interleaved": {"head_size": 32, "interleaved": 1},
    "softcap": {"attributes": ", softcap: float = 2.0"},
    "scale": {"attributes": ", scale: float = 0.11"},
    "softmax precision": {"attributes": ", softmax_precision: int = 1"},
    "is_causal too": {"attributes": ", is_causal: int = 1"},
    "window": {"window": 3},
    "all": {
        "head_size": 32,
        "interleaved": 1,
        "window": 4,
        "attributes": ", softcap: float = 3.0, scale: float = 0.3",
    },
    "multi-query": {"kv_heads": 1},
    "multi-head": {"kv_heads": 4},
    "three layers": {"layers": 3},
    "no rotary": {"rotary": 0},
}


@pytest.mark.parametrize("name", FUSED)
def test_fused(decoder: Any, name: str) -> None:
    """C001, C005, C022, C077: numbers, attributes carried, no RotaryEmbedding left."""
    block = decoder(**FUSED[name])
    before = op_counts(block.build())
    gone = {"Attention", "RotaryEmbedding", "mobius.mask::CausalMask"} & before.keys()
    after = {GQA: block.layers, **dict.fromkeys(gone, 0)}
    CONFORMANCE.check(RuleCase(name, block.build, block.layers, after=after, inputs=block.prompt()))


NO_WINDOW = {"do_rotary": 1, "kv_num_heads": 2, "num_heads": 4}
ATTRIBUTES: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "nothing set": ({}, NO_WINDOW),
    "interleaved": ({"interleaved": 1}, {**NO_WINDOW, "rotary_interleaved": 1}),
    "window": ({"window": 3}, {**NO_WINDOW, "local_window_size": 3}),
    "softcap": ({"attributes": ", softcap: float = 2.0"}, {**NO_WINDOW, "softcap": 2.0}),
    "softcap of 0": ({"attributes": ", softcap: float = 0.0"}, NO_WINDOW),
    "scale": ({"attributes": ", scale: float = 0.5"}, {**NO_WINDOW, "scale": 0.5}),
    "no rotary": ({"rotary": 0}, {"kv_num_heads": 2, "num_heads": 4}),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes(decoder: Any, name: str) -> None:
    """C001, C022, C134: what is set is carried over, what is not is left out."""
    settings, expected = ATTRIBUTES[name]
    node = _operator(_applied(decoder(**settings)))
    assert {key: attr.value for key, attr in node.attributes.items()} == expected


def test_explicit_scale(decoder: Any) -> None:
    """Targets differ: one has no default scale."""
    model = decoder().build()
    assert RuleConformance(lambda: group_query_attention_rules(explicit_scale=True)).apply(model)
    assert _operator(model).attributes["scale"].value == 0.25


@pytest.mark.parametrize(
    ("name", "value", "settings"),
    [
        ("softcap", "2", {"attributes": ", softcap: float = 2.0"}),
        ("scale", "0.5", {"attributes": ", scale: float = 0.5"}),
        ("local_window_size", "3", {"window": 3}),
    ],
)
def test_attributes_that_the_target_gets_wrong(
    decoder: Any, name: str, value: str, settings: dict[str, Any]
) -> None:
    """C127: one target ignores softcap. What needs it is refused, the rest is fused."""
    refused = {name, "attention_bias"}
    conformance = RuleConformance(lambda: group_query_attention_rules(refuse_attributes=refused))
    block = decoder(**settings)
    reason = (
        f"GroupQueryAttention for Attention (node 'attention0') would have {name} = {value}; none "
        "is needed, because the target gets this attribute wrong."
    )
    conformance.check(RuleCase(name, block.build, 0, (reason,), inputs=block.prompt()))
    plain = decoder()
    conformance.check(RuleCase("plain", plain.build, after={GQA: 1}, inputs=plain.prompt()))


@pytest.mark.parametrize("name", ["do_rotary", "rotary_interleaved"])
def test_rotary_attributes_that_the_target_gets_wrong(decoder: Any, name: str) -> None:
    """Rotary stays outside where the kernel cannot be trusted with it."""
    conformance = RuleConformance(lambda: group_query_attention_rules(refuse_attributes={name}))
    block = decoder(interleaved=1)
    after = {GQA: 1, "RotaryEmbedding": 2}
    conformance.check(RuleCase(name, block.build, after=after, inputs=block.prompt()))
    model = block.build()
    conformance.apply(model)
    assert "do_rotary" not in _operator(model).attributes


def test_explicit_positions(decoder: Any) -> None:
    """The operator gets the graph's position ids too, where it rotates, and computes the same."""
    conformance = RuleConformance(lambda: group_query_attention_rules(explicit_positions=True))
    block = decoder()
    conformance.check(RuleCase("positions", block.build, after={GQA: 1}, inputs=block.prompt()))
    for settings, slots in (({}, 10), ({"rotary": 0}, 7)):
        model = decoder(**settings).build()
        assert conformance.apply(model) == 1
        names = [value.name for value in _operator(model).inputs if value is not None]
        assert (len(names), names[-1] == "position_ids") == (slots, slots == 10)


def test_inputs_and_outputs(decoder: Any) -> None:
    """C037, C077, C102: slots, types, and the names of three layers."""
    model = _applied(decoder(layers=3))
    for layer, node in enumerate(_operators(model)):
        names = [None if value is None else value.name for value in node.inputs]
        assert names[:5] == [
            f"q{layer}",
            f"k{layer}",
            f"v{layer}",
            f"past_key_{layer}",
            f"past_value_{layer}",
        ]
        assert names[7:] == ["w_cos", "w_sin"]
        lengths, total = node.inputs[5:7]
        assert lengths is not None
        assert total is not None
        assert (str(lengths.dtype), str(lengths.shape)) == ("INT32", "[B]")
        assert (str(total.dtype), str(total.shape)) == ("INT32", "[]")
        assert [value.name for value in node.outputs[1:]] == [
            f"present_key_{layer}",
            f"present_value_{layer}",
        ]
        assert [str(value.dtype) for value in node.outputs] == ["FLOAT"] * 3
        assert node.name == f"attention{layer}"


def test_outputs_of_the_node_keep_their_names(decoder: Any) -> None:
    """C058: an attention output that leaves the graph keeps its name, type and shape."""
    block = decoder(extra="z = Neg(a0)", extra_outputs="float[B, S, 64] a0, float[B, S, 64] z")
    CONFORMANCE.check(RuleCase("outputs", block.build, after={GQA: 1}, inputs=block.prompt()))


PADDED: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers": {"layers": 2},
    "interleaved, partial": {"head_size": 32, "interleaved": 1},
    "window": {"window": 3, "layers": 2},
    "no rotary": {"rotary": 0},
    "rotary stays outside": {"rotary": 8},
    "softcap and scale": {"attributes": ", softcap: float = 3.0, scale: float = 0.4"},
}


@pytest.mark.parametrize("name", PADDED)
def test_padded_batch(decoder: Any, rows_alone: Any, padded_batch: Any, name: str) -> None:
    """C002: in a batch padded on the right each row is what it is alone, prompt and 3 steps.

    The reference is the unfused graph, each row by itself; the padded batch is fused.
    """
    block = decoder(**PADDED[name])
    x = block.noise(2, 9 + 3)
    alone = rows_alone(block, block.build(), x, [9, 5], 3)
    for found, expected in zip(
        padded_batch(block, _applied(block), x, [9, 5], 3), alone, strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


LEFT_OR_RIGHT: dict[str, dict[str, Any]] = {
    **PADDED,
    "chunks": {"mask": "mobius.mask.ChunkedMask <chunk: int = 4> (attention_mask, position_ids)"},
    "float16": {"dtype": "float16", "window": 3},
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", LEFT_OR_RIGHT)
def test_mask_as_bias(
    decoder: Any, rows_alone: Any, padded_batch: Any, name: str, side: str
) -> None:
    """C002, C038: with the mask as a bias, rows padded on any side are what they are alone."""
    block = decoder(**LEFT_OR_RIGHT[name])
    x = block.noise(2, 9 + 3)
    alone = rows_alone(block, block.build(), x, [9, 5], 3)
    biased: ir.Model = block.build()
    assert LEFT.apply(biased) == block.layers
    for node in _operators(biased):
        assert "local_window_size" not in node.attributes
        assert node.attributes["do_rotary"].as_int() == 0  # MLX's plugin has another default
        names = [None if value is None else value.name for value in node.inputs]
        assert (len(names), names[7:10]) == (11, [None] * 3)
        bias = node.inputs[10]
        assert (len(bias.shape), bias.shape[1], bias.dtype) == (4, 1, node.inputs[0].dtype)
    tolerance = 2e-2 if name == "float16" else 2e-5
    found = padded_batch(block, biased, x, [9, 5], 3, side)
    for row, expected in zip(found, alone, strict=True):
        np.testing.assert_allclose(row, expected, rtol=tolerance, atol=tolerance)


BIASED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "left padding": (
        {},
        {"padding_side": "left"},
        "GroupQueryAttention for {} would need attention_bias, which the target's kernel does "
        "not take, because lengths cannot say that rows are padded on the left.",
    ),
    "chunks": (
        {"mask": "mobius.mask.ChunkedMask <chunk: int = 3> (attention_mask, position_ids)"},
        {},
        "GroupQueryAttention for {} would need attention_bias, which the target's kernel does "
        "not take, because the mask is one of chunks of 3 tokens.",
    ),
    "window": (
        {"window": 3},
        {"refuse_attributes": {"local_window_size"}},
        "GroupQueryAttention for {} would have local_window_size = 3; none is needed, because "
        "the target gets this attribute wrong.",
    ),
    "lengths that are not read": (
        {},
        {"refuse_attributes": {"seqlens_k"}},
        "GroupQueryAttention for {} would need attention_bias, which the target's kernel does "
        "not take, because it does not read the lengths of rows either.",
    ),
}


@pytest.mark.parametrize("name", BIASED)
def test_bias_where_lengths_are_not_enough(decoder: Any, name: str) -> None:
    """C033, C127: the mask becomes a bias where the kernel takes one; else the reason is told."""
    settings, arguments, reason = BIASED[name]
    block = decoder(**settings)
    with_bias = RuleConformance(lambda: group_query_attention_rules(**arguments))
    after = {GQA: 1, "RotaryEmbedding": 2, "Attention": 0}
    with_bias.check(RuleCase(name, block.build, after=after, inputs=block.prompt()))
    refused = {*arguments.get("refuse_attributes", ()), "attention_bias"}
    without = RuleConformance(
        lambda: group_query_attention_rules(**{**arguments, "refuse_attributes": refused})
    )
    reason = reason.format(NODE)
    without.check(RuleCase(name, block.build, 0, (reason,), inputs=block.prompt()))
    (refusal,) = refusals(
        block.build(), group_query_attention_rules(**{**arguments, "refuse_attributes": refused})
    )
    assert refusal.inherent


def test_unknown_padding_side() -> None:
    with pytest.raises(ValueError, match="padding_side is 'both'"):
        group_query_attention_rules(padding_side="both")


def test_continuation(decoder: Any) -> None:
    """A second chunk of a prompt: positions and window go on from the first."""
    block = decoder(window=4, layers=2)
    unfused, fused = block.build(), _applied(block)
    x = block.noise(1, 11)
    whole = run_model(unfused, block.inputs(np.ones((1, 11)), None, x))["y"]
    first = run_model(fused, block.inputs(np.ones((1, 6)), None, x[:, :6]))
    second = run_model(fused, block.inputs(np.ones((1, 11)), first, x[:, 6:]))
    found = np.concatenate([first["y"], second["y"]], 1)
    np.testing.assert_allclose(found, whole, rtol=2e-5, atol=2e-5)


def test_half_precision(decoder: Any) -> None:
    """f16 on ONNX Runtime's CPU: equal to the unfused f32 graph within f16 rounding."""
    half, single = decoder(dtype="float16", layers=2), decoder(layers=2)
    x = half.noise(2, 7)
    expected = run_model(single.build(), single.inputs(np.ones((2, 7)), None, np.float32(x)))
    found = run_model(_applied(half), half.inputs(np.ones((2, 7)), None, x))
    assert found["y"].dtype == np.float16
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-2, atol=2e-2)


def test_window_counts_the_current_token() -> None:
    """C034: with a window of 3, row i sees the keys i-2 to i, in this ONNX Runtime."""
    text = """<ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>
    impulse (float[1, 6, 16] q, float[1, 6, 16] k, float[1, 6, 16] v,
             float[1, 1, 0, 16] pk, float[1, 1, 0, 16] pv, int32[1] last, int32 total)
        => (float[1, 6, 16] y, float[1, 1, 6, 16] ok, float[1, 1, 6, 16] ov)
    { y, ok, ov = com.microsoft.GroupQueryAttention
        <num_heads: int = 1, kv_num_heads: int = 1, local_window_size: int = 3>
        (q, k, v, pk, pv, last, total) }"""
    zeros, past = np.zeros((1, 6, 16), np.float32), np.zeros((1, 1, 0, 16), np.float32)
    out = run_model(
        ir.from_onnx_text(text),
        {
            "q": zeros,
            "k": zeros,
            "v": np.eye(6, 16, dtype=np.float32)[None],
            "pk": past,
            "pv": past,
            "last": np.array([5], np.int32),
            "total": np.array(6, np.int32),
        },
    )["y"][0, :, :6]
    seen = [[int(key) for key in np.flatnonzero(row)] for row in out]
    assert seen == [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]


ROTARY_OUTSIDE: dict[str, dict[str, Any]] = {
    "width 8 is no multiple of 16": {"rotary": 8},
    "pairing differs": {
        "edit": lambda text: text.replace("interleaved: int = 0", "interleaved: int = 1", 1)
    },
    "width differs": {
        "head_size": 32,
        "edit": lambda text: text.replace(
            "rotary_embedding_dim: int = 16> (k0, w_cos, w_sin",
            "rotary_embedding_dim: int = 32> (k0, w_wide, w_wide",
        ).replace(") =>", ", float[64, 16] w_wide) =>", 1),
    },
    "tables differ": {"edit": lambda text: text.replace("(k0, w_cos, w_sin", "(k0, w_sin, w_cos")},
    "positions are not the mask's": {
        "edit": lambda text: text.replace("w_sin, position_ids)", "w_sin, two)").replace(
            "[rotary_q0]", "two = Add(position_ids, position_ids)\n[rotary_q0]"
        )
    },
    "norm after rotation": {
        "edit": lambda text: text.replace("(rq0, rk0, v0", "(nq0, rk0, v0").replace(
            "[attention0]", "nq0 = Tanh(rq0)\n[attention0]"
        )
    },
    "only the query is rotated": {
        "edit": lambda text: text.replace("(rq0, rk0, v0", "(rq0, k0, v0")
    },
    "heads are split otherwise": {
        "edit": lambda text: text.replace(
            "RotaryEmbedding <num_heads: int = 4, interleaved: int = 0, rotary_embedding_dim: "
            "int = 0>",
            "RotaryEmbedding <num_heads: int = 2, interleaved: int = 0, rotary_embedding_dim: "
            "int = 16>",
        )
    },
    "3-D tables without positions": {
        "edit": lambda text: text.replace("w_cos, w_sin, position_ids)", "c3, s3)").replace(
            "[rotary_q0]",
            "c3 = Gather(w_cos, position_ids)\ns3 = Gather(w_sin, position_ids)\n[rotary_q0]",
        )
    },
}


@pytest.mark.parametrize("name", ROTARY_OUTSIDE)
def test_rotary_stays_outside(decoder: Any, name: str) -> None:
    """C005, C042, C043, C081: what the operator would not rotate the same is rotated in front."""
    block = decoder(**ROTARY_OUTSIDE[name])
    rotations = op_counts(block.build())["RotaryEmbedding"]
    live = rotations - (name == "only the query is rotated")
    case = RuleCase(
        name,
        block.build,
        after={GQA: 1, "Attention": 0, "RotaryEmbedding": live},
        inputs=block.prompt(),
    )
    CONFORMANCE.check(case)
    assert "do_rotary" not in _operator(_applied(block)).attributes


def test_rotated_values_with_other_readers(decoder: Any) -> None:
    """A rotation that something else reads stays; the operator rotates for itself."""
    block = decoder(extra="z = Neg(rq0)", extra_outputs="float[B, S, 64] z")
    case = RuleCase(
        "reader", block.build, after={GQA: 1, "RotaryEmbedding": 1}, inputs=block.prompt()
    )
    CONFORMANCE.check(case)
    assert _operator(_applied(block)).attributes["do_rotary"].value == 1


WHY = "GroupQueryAttention can only be causal, with padding and a window."
MASKS = (
    "a mask made by mobius.mask::CausalMask, SlidingWindowMask or ChunkedMask is needed, because"
)
NO_MASK = (
    "a mask made by an operator of the domain mobius.mask is needed, because GroupQueryAttention "
    "needs the number of real tokens in each row."
)
CACHE = "because GroupQueryAttention lays out the cache of padded rows differently."
NODE = "Attention (node 'attention0')"


def _swap(old: str, new: str) -> Any:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return edit


def _no_presents(text: str) -> str:
    text = text.replace("a0, present_key_0, present_value_0 = Attention", "a0 = Attention")
    text = text.replace("mask, past_key_0, past_value_0)", "mask)")
    for role in ("key", "value"):
        text = text.replace(f", float[B, 2, T, 16] present_{role}_0", "")
        text = text.replace(f", float[B, 2, P, 16] past_{role}_0", "")
    return text


def _four_dimensional(text: str) -> str:
    lines = [
        "q4s = Constant <value_ints = [0, 0, 4, 16]> ()",
        "k4s = Constant <value_ints = [0, 0, 2, 16]> ()",
        "q4 = Reshape(q0, q4s)",
        "qt = Transpose <perm = [0, 2, 1, 3]> (q4)",
        "k4 = Reshape(k0, k4s)",
        "kt = Transpose <perm = [0, 2, 1, 3]> (k4)",
        "v4 = Reshape(v0, k4s)",
        "vt = Transpose <perm = [0, 2, 1, 3]> (v4)",
        "[attention0]",
    ]
    text = text.replace("[attention0] a0", "\n".join(lines) + " at").replace(
        "(q0, k0, v0, mask", "(qt, kt, vt, mask"
    )
    return text.replace(
        "o0 = MatMul",
        "ap = Transpose <perm = [0, 2, 1, 3]> (at)\n"
        "as = Constant <value_ints = [0, 0, 64]> ()\na0 = Reshape(ap, as)\no0 = MatMul",
    )


OVERLAY = """[overlay] mask = Or(causal, spans)"""

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bidirectional spans": (
        {
            "edit": lambda text: (
                text.replace("mask = mobius", "causal = mobius")
                .replace(
                    "q0 = MatMul", "spans = Equal(attention_mask4, attention_mask4)\nq0 = MatMul", 1
                )
                .replace(
                    "spans = Equal(attention_mask4, attention_mask4)",
                    "axes = Constant <value_ints = [1, 2]> ()\n"
                    "wide = Unsqueeze(attention_mask, axes)\n"
                    "spans = Cast <to = 9> (wide)\n" + OVERLAY,
                )
            )
        },
        f"The mask of {NODE} is produced by Or (node 'overlay'); {MASKS} {WHY}",
    ),
    "mask from outside": (
        {
            "edit": lambda t: t.replace("(rq0, rk0, v0, mask", "(rq0, rk0, v0, given").replace(
                ") =>", ", bool[B, 1, S, T] given) =>", 1
            )
        },
        f"The mask of {NODE} is the graph input 'given'; {MASKS} {WHY}",
    ),
    "no mask but is_causal": (
        {
            "attributes": ", is_causal: int = 1",
            "edit": _swap("(rq0, rk0, v0, mask", "(rq0, rk0, v0, "),
        },
        f"{NODE} has no mask but is_causal; {NO_MASK}",
    ),
    "no mask": (
        {"edit": _swap("(rq0, rk0, v0, mask", "(rq0, rk0, v0, ")},
        f"{NODE} has no mask; {NO_MASK}",
    ),
    "no cache": (
        {"edit": _no_presents},
        f"{NODE} has no past_key and past_value pair; both are needed.",
    ),
    "other head size of value": (
        {"value_size": 8},
        f"The head sizes of key and value of {NODE} are 16 and 8; equal ones are needed.",
    ),
    "head size 20": (
        {"head_size": 20, "rotary": 0},
        f"The head size of {NODE} is 20; a multiple of 8 is needed.",
    ),
    "head size 4": (
        {"head_size": 4, "rotary": 4},
        f"The head size of {NODE} is 4; a multiple of 8 is needed.",
    ),
    "softmax in double": (
        {"attributes": ", softmax_precision: int = 11"},
        f"The softmax_precision of {NODE} is DOUBLE; FLOAT or none is needed, because that is "
        "what GroupQueryAttention computes in.",
    ),
    "scores are read": (
        {
            "edit": _swap("present_value_0 = Attention", "present_value_0, s0 = Attention"),
            "extra": "z = Neg(s0)",
            "extra_outputs": "float[B, 4, S, T] z",
        },
        f"The output qk_matmul_output of {NODE} is used; it must be unused, because "
        "GroupQueryAttention defines its own differently.",
    ),
    "window of 0": (
        {"edit": lambda t: t.replace("CausalMask (", "SlidingWindowMask <window: int = 0> (")},
        f"The window of the mask of {NODE} is 0; at least 1, the current token, is needed.",
    ),
    "four-dimensional": (
        {"rotary": 0, "edit": _four_dimensional},
        f"The query of {NODE} is 4-D; a 3-D one, [batch, sequence, heads * head size], is needed.",
    ),
    "padding mask of int32": (
        {"edit": _swap("int64[B, T] attention_mask", "int32[B, T] attention_mask")},
        f"The padding mask of {NODE} has the element type INT32; INT64 is needed, because its sum "
        "counts tokens.",
    ),
    "scale of 0": (
        {"attributes": ", scale: float = 0.0"},
        f"The scale of {NODE} is 0; another one is needed, because GroupQueryAttention takes 0 "
        "to mean 1/sqrt(head size).",
    ),
    "negative softcap": (
        {"attributes": ", softcap: float = -1.0"},
        f"The softcap of {NODE} is -1; a positive one, or 0 for none, is needed.",
    ),
}
SEEN_CACHES: dict[str, tuple[dict[str, Any], str]] = {
    "present read inside": (
        {"extra": "[reader] z = Neg(present_key_0)", "extra_outputs": "float[B, 2, T, 16] z"},
        f"The output present_key of {NODE} is read by Neg (node 'reader'); it must only leave "
        f"the graph, {CACHE}",
    ),
    "past read elsewhere": (
        {"extra": "[reader] z = Neg(past_key_0)", "extra_outputs": "float[B, 2, P, 16] z"},
        f"The input past_key of {NODE} is the graph input 'past_key_0', read by Neg (node "
        f"'reader') too; a graph input that nothing else reads is needed, {CACHE}",
    ),
    "past is computed": (
        {
            "edit": lambda t: t.replace("mask, past_key_0,", "mask, past,").replace(
                "[attention0]", "[neg] past = Neg(past_key_0)\n[attention0]"
            )
        },
        f"The input past_key of {NODE} is produced by Neg (node 'neg'); a graph input that "
        f"nothing else reads is needed, {CACHE}",
    ),
}
# ONNX Runtime refuses these by itself; what counts is that the rule says so and leaves them.
DOES_NOT_RUN = {"softmax in double", "padding mask of int32", "negative softcap", "scale of 0"}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(decoder: Any, name: str) -> None:
    """C023, C035, C037, C129: the reason is exact, the graph and its numbers are untouched."""
    settings, reason = REFUSED[name]
    block = decoder(**settings)
    inputs = block.prompt()
    if name == "mask from outside":
        inputs["given"] = np.tril(np.ones((2, 1, 7, 7), bool))
    if name == "no cache":
        inputs = {key: value for key, value in inputs.items() if "past" not in key}
    CONFORMANCE.check(
        RuleCase(
            name,
            block.build,
            0,
            (reason,),
            after={"Attention": 1, GQA: 0},
            inputs=inputs,
            compare=name not in DOES_NOT_RUN,
        )
    )


@pytest.mark.parametrize("name", SEEN_CACHES)
def test_caches_that_others_see(decoder: Any, name: str) -> None:
    """The mask becomes a bias, which leaves the cache as it is; without one it is refused."""
    settings, reason = SEEN_CACHES[name]
    block = decoder(**settings)
    after = {GQA: 1, "Attention": 0, "RotaryEmbedding": 2}
    CONFORMANCE.check(RuleCase(name, block.build, after=after, inputs=block.prompt()))
    NO_BIAS.check(RuleCase(name, block.build, 0, (reason,), inputs=block.prompt()))


def test_a_block_overlay_of_no_window_is_refused_layer_by_layer(decoder: Any) -> None:
    """Candidates are judged one by one: a refused layer does not stop the others."""
    block = decoder(layers=3, edit=lambda t: t.replace("(rq1, rk1, v1, mask", "(rq1, rk1, v1, "))
    reason = f"Attention (node 'attention1') has no mask; {NO_MASK}"
    after = {GQA: 2, "Attention": 1}
    CONFORMANCE.check(RuleCase("one", block.build, 2, (reason,), after, inputs=block.prompt()))


@pytest.mark.parametrize("missing", range(8))
def test_omitted_inputs_and_outputs(decoder: Any, missing: int) -> None:
    """C101: whatever input is left out, in the middle or at the end, the answer is a reason."""
    model = decoder().build()
    node = next(node for node in model.graph if node.op_type == "Attention")
    if missing < 6:
        node.replace_input_with(missing, None)
    else:
        output = node.outputs[missing - 5]
        model.graph.outputs.remove(output)
        output.name = ""
    proto = ir.to_proto(model)
    found = refusals(ir.from_proto(proto), group_query_attention_rules())
    assert [(refusal.node, refusal.op_type) for refusal in found] == [("attention0", "Attention")]
    assert found[0].reason.endswith(".")
    assert CONFORMANCE.apply(ir.from_proto(proto)) == 0


def test_unknown_shapes_are_refused(decoder: Any) -> None:
    """Without shapes nothing is proved: a reason, no guess."""
    model = decoder().build()
    for node in model.graph:
        for value in node.outputs:
            value.shape = None
    (refusal,) = refusals(model, group_query_attention_rules())
    assert refusal.reason == (
        f"The query of {NODE} is of unknown rank; a 3-D one, [batch, sequence, heads * head "
        "size], is needed."
    )


def test_stock_rewriter(decoder: Any) -> None:
    """The rules are ordinary onnxscript rules: `rewrite` takes a proto and them alone."""
    proto = ir.to_proto(decoder().build())
    out = ir.from_proto(rewrite(proto, group_query_attention_rules()))
    assert op_counts(out)[GQA] == 1
    assert "mobius.mask" not in out.graph.opset_imports
    assert not out.functions


PROGRAM = """
import sys
import onnx_ir as ir
from onnxscript.rewriter import rewrite
from mobius_ir_rules.fusion.group_query_attention import group_query_attention_rules
from mobius_ir_rules.fusion.pack_qkv import pack_qkv_rules
model = ir.load(sys.argv[1])
for rules in (group_query_attention_rules(), pack_qkv_rules()):
    rewrite(model, rules)
for node in model.graph:
    print(node.name, node.op_type, *(value and value.name for value in node.inputs))
"""


def test_same_graph_under_any_hash_seed(decoder: Any, tmp_path: pathlib.Path) -> None:
    """C093: the nodes, their names and order do not depend on PYTHONHASHSEED."""
    ir.save(decoder(layers=3).build(), tmp_path / "model.onnx")
    listings = set()
    for seed in ("0", "1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "model.onnx")],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        listings.add(run.stdout)
    (listing,) = listings
    assert listing.count("GroupQueryAttention") == 3


def _applied(block: Any) -> ir.Model:
    model: ir.Model = block.build()
    assert CONFORMANCE.apply(model) == block.layers
    return model


def _operators(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == "GroupQueryAttention"]


def _operator(model: ir.Model) -> ir.Node:
    (node,) = _operators(model)
    return node
