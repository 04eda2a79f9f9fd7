"""`SinkAttention`: its body against NumPy, and `GroupQueryAttention` that it is fused into."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from onnxscript.rewriter import RewriteRuleSet

from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.functions.masks import SLIDING_WINDOW_MASK, sliding_window_mask
from mobius_ir_rules.functions.sink_attention import SINK_ATTENTION_BODY
from mobius_ir_rules.fusion.group_query_attention import group_query_attention_rules
from mobius_ir_rules.lowering.attention import attention_to_primitives_rules
from mobius_ir_rules.match_log import refusals
from mobius_ir_rules.passes import InlineFunctions
from mobius_ir_rules.testing import op_counts, run_model

HEADS, KV_HEADS, SIZE = 4, 2, 16
ATTRIBUTES = {"none": (0.3, 0.0), "softcap": (1.0, 2.0)}
STEPS = {"prompt": (0, 6), "token": (6, 1)}


def model(scale: float, softcap: float, dtype: str = "float") -> ir.Model:
    """Return one operator with its mask, whose positions are those of the mask."""
    return ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["" : 24, "mobius.mask" : 1, "mobius.attention" : 1,
                                           "com.microsoft" : 1]>
        sinks ({dtype}[B, S, 64] q, {dtype}[B, S, 32] k, {dtype}[B, S, 32] v,
               int64[B, T] attention_mask, int64[B, S] position_ids,
               {dtype}[B, 2, P, 16] past_key, {dtype}[B, 2, P, 16] past_value, {dtype}[4] sink)
            => ({dtype}[B, S, 64] y, {dtype}[B, 2, T, 16] present_key,
                {dtype}[B, 2, T, 16] present_value)
        <bool[B, 1, S, T] mask> {{
            mask = mobius.mask.SlidingWindowMask <window: int = 4> (attention_mask, position_ids)
            [sink] y, present_key, present_value = mobius.attention.SinkAttention
                <q_num_heads: int = 4, kv_num_heads: int = 2, scale: float = {scale},
                 softcap: float = {softcap}>
                (q, k, v, mask, past_key, past_value, sink)
        }}"""
    )


def inputs(past: int, new: int, dtype: Any = np.float32) -> dict[str, npt.NDArray[Any]]:
    """Return two rows, the second padded on the left by two."""
    random = np.random.default_rng(past)
    mask = np.ones((2, past + new), np.int64)
    mask[1, :2] = 0
    shapes = {
        "q": (2, new, HEADS * SIZE),
        "k": (2, new, KV_HEADS * SIZE),
        "v": (2, new, KV_HEADS * SIZE),
        "past_key": (2, KV_HEADS, past, SIZE),
        "past_value": (2, KV_HEADS, past, SIZE),
    }
    values = {name: random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    return {
        **values,
        "sink": np.array([3.0, -2.0, 0.5, 1.0], dtype),
        "attention_mask": mask,
        "position_ids": np.maximum(np.cumsum(mask, 1) - 1, 0)[:, past:],
    }


def expected(given: dict[str, npt.NDArray[Any]], scale: float, softcap: float) -> Any:
    """Return y in float64."""
    batch, new, _ = given["q"].shape
    split = {
        name: given[name].astype(np.float64).reshape(batch, new, -1, SIZE).transpose(0, 2, 1, 3)
        for name in ("q", "k", "v")
    }
    keys = np.concatenate([given["past_key"], split["k"]], 2).repeat(HEADS // KV_HEADS, 1)
    values = np.concatenate([given["past_value"], split["v"]], 2).repeat(HEADS // KV_HEADS, 1)
    scores = split["q"] @ keys.transpose(0, 1, 3, 2) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    mask = given["attention_mask"]
    slot, index = np.arange(mask.shape[1]), np.cumsum(mask, 1)
    query_slot, query_index = slot[-new:], index[:, -new:]
    seen = (query_slot[:, None] >= slot) & (query_index[:, :, None] - index[:, None] < 4)
    seen &= (mask[:, None] == 1) | (query_slot[:, None] == slot)
    weights = np.exp(scores) * seen[:, None]
    sink = np.exp(given["sink"].astype(np.float64))[None, :, None]
    weights /= (weights.sum(-1) + sink)[..., None]
    return (weights @ values).transpose(0, 2, 1, 3).reshape(batch, new, HEADS * SIZE)


def inlined(built: ir.Model) -> ir.Model:
    """Return the model with every body in place of its call."""
    AttachFunctions()(built)
    InlineFunctions()(built)
    assert {node.domain for node in built.graph} == {""}
    return built


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_body(name: str, step: str) -> None:
    """C033: the sink is one more term of the softmax, neither scaled nor capped."""
    given = inputs(*STEPS[step])
    found = run_model(inlined(model(*ATTRIBUTES[name])), given)
    real = given["attention_mask"][:, -found["y"].shape[1] :] == 1
    difference = found["y"] - expected(given, *ATTRIBUTES[name])
    assert np.abs(difference[real]).max() < 1e-6
    assert np.isfinite(found["y"]).all()
    new_keys = given["k"].reshape(2, -1, KV_HEADS, SIZE).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(
        found["present_key"], np.concatenate([given["past_key"], new_keys], 2)
    )


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_fused(name: str, step: str, dtype: str) -> None:
    """C033: `head_sink` of ONNX Runtime's kernel means the same; left padding needs the bias."""
    numbers = np.float16 if dtype == "float16" else np.float32
    given = inputs(*STEPS[step], numbers)
    built = model(*ATTRIBUTES[name], dtype)
    rules = group_query_attention_rules(padding_side="left")
    assert RewriteRuleSet(rules).apply_to_model(built) == 1
    assert op_counts(built)["com.microsoft::GroupQueryAttention"] == 1
    AttachFunctions({SLIDING_WINDOW_MASK: sliding_window_mask})(built)
    found = run_model(built, given)["y"]
    real = given["attention_mask"][:, -found.shape[1] :] == 1
    difference = found - expected(given, *ATTRIBUTES[name])
    assert np.abs(difference[real]).max() < (5e-3 if dtype == "float16" else 1e-6)


def test_fused_by_lengths_has_a_window() -> None:
    """C001, C102: lengths and window are attributes, the sink is the last input."""
    built = model(0.3, 0.0)
    assert RewriteRuleSet(group_query_attention_rules()).apply_to_model(built) == 1
    (node,) = (node for node in built.graph if node.op_type == "GroupQueryAttention")
    assert node.attributes["local_window_size"].value == 4
    names = [None if value is None else value.name for value in node.inputs]
    assert names[7:] == [None, None, None, None, "sink"]


def test_refused_where_the_kernel_has_no_sinks() -> None:
    rules = group_query_attention_rules(refuse_attributes={"head_sink"})
    (refusal,) = refusals(model(0.3, 0.0), rules)
    assert refusal.inherent
    assert refusal.reason == (
        "GroupQueryAttention for mobius.attention::SinkAttention (node 'sink') would need "
        "head_sink, which the target's kernel does not take."
    )


def test_body_needs_an_opset_with_attention() -> None:
    (node,) = (node for node in model(0.3, 0.0).graph if node.op_type == "SinkAttention")
    with pytest.raises(ValueError, match="needs opset 23 or later, found opset 22"):
        SINK_ATTENTION_BODY.for_call(node, 22)


def test_body_has_the_shapes_that_lowering_needs() -> None:
    """C135: a target without `Attention` gets primitives of the inlined one."""
    built = inlined(model(0.3, 2.0))
    rules = attention_to_primitives_rules()
    assert RewriteRuleSet(rules).apply_to_model(built) == 1
    assert op_counts(built)["Attention"] == 0
    given = inputs(6, 1)
    np.testing.assert_allclose(run_model(built, given)["y"], expected(given, 0.3, 2.0), atol=1e-6)
