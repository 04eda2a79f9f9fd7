"""The body of LinearAttention is ONNX Runtime's kernel, for one token and for many."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime
import pytest

from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.functions.linear_attention import LINEAR_ATTENTION, LINEAR_ATTENTION_BODY
from mobius_ir_rules.passes import InlineFunctions
from mobius_ir_rules.rule import RefusedError

Array = npt.NDArray[Any]
BATCH, KEY, VALUE = 2, 8, 16
RULES = ("linear", "gated", "delta", "gated_delta")


def _inputs(
    rule: str,
    length: int,
    heads: tuple[int, int],
    past: bool = True,
    per_channel: bool = False,
    shared_beta: bool = False,
) -> list[Array | None]:
    random = np.random.default_rng(0)

    def noise(*shape: int) -> Array:
        return random.standard_normal(shape).astype(np.float32)

    q_heads, kv_heads = heads
    key = noise(BATCH, length, kv_heads, KEY)
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    width = kv_heads * (KEY if per_channel else 1)
    return [
        noise(BATCH, length, q_heads * KEY),
        key.reshape(BATCH, length, -1),
        noise(BATCH, length, kv_heads * VALUE),
        noise(BATCH, kv_heads, KEY, VALUE) if past else None,
        -np.abs(noise(BATCH, length, width)) if "gated" in rule else None,
        1.0 / (1.0 + np.exp(-noise(BATCH, length, 1 if shared_beta else kv_heads)))
        if "delta" in rule
        else None,
    ]


def _attend(rule: str, inputs: list[Array | None], heads: tuple[int, int]) -> list[Array]:
    """Token by token, head by head, in float64."""
    query, key, value, past, decay, beta = (
        None if array is None else array.astype(np.float64) for array in inputs
    )
    assert query is not None
    assert key is not None
    assert value is not None
    q_heads, kv_heads = heads
    length = query.shape[1]
    state = np.zeros((BATCH, kv_heads, KEY, VALUE)) if past is None else past.copy()
    output = np.zeros((BATCH, length, max(heads), VALUE))
    q = query.reshape(BATCH, length, q_heads, KEY) / np.sqrt(KEY)
    k, v = key.reshape(BATCH, length, kv_heads, KEY), value.reshape(BATCH, length, kv_heads, VALUE)
    for row in range(BATCH):
        for token in range(length):
            for head in range(kv_heads):
                s = state[row, head]
                if decay is not None:
                    g = decay[row, token].reshape(kv_heads, -1)[head]
                    s = np.exp(g)[:, None] * s
                new = v[row, token, head]
                if beta is not None:
                    b = beta[row, token]
                    new = b[head % b.size] * (new - k[row, token, head] @ s)
                state[row, head] = s + np.outer(k[row, token, head], new)
            for head in range(max(heads)):
                of_kv = head // (max(heads) // kv_heads)
                of_q = head // (max(heads) // q_heads)
                output[row, token, head] = q[row, token, of_q] @ state[row, of_kv]
    return [output.reshape(BATCH, length, -1), state]


@pytest.mark.parametrize("opset", [17, 24])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("heads", [(4, 2), (2, 4)], ids=["grouped", "inverse"])
@pytest.mark.parametrize("variant", ["plain", "no past", "per channel", "shared beta"])
def test_body_equals_kernel(
    run_body: Any, opset: int, rule: str, length: int, heads: tuple[int, int], variant: str
) -> None:
    """Every update, both kinds of decay and beta, fewer and more query heads than states."""
    inputs = _inputs(
        rule,
        length,
        heads,
        past=variant != "no past",
        per_channel=variant == "per channel",
        shared_beta=variant == "shared beta",
    )
    expected = [array.astype(np.float32) for array in _attend(rule, inputs, heads)]
    results = run_body(
        LINEAR_ATTENTION,
        opset,
        inputs,
        expected,
        q_num_heads=heads[0],
        kv_num_heads=heads[1],
        update_rule=rule,
    )
    for who, found in results.items():
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6, err_msg=who)


@pytest.mark.parametrize("rule", ["gated", "gated_delta"])
@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize(("q_heads", "k_heads"), [(2, 2), (1, 1), (4, 2)])
def test_a_key_serves_several_states(
    run_body: Any, rule: str, length: int, q_heads: int, k_heads: int
) -> None:
    """Fewer keys than states, as kernels find from the widths (Mamba 2, Qwen3.5)."""
    kv_heads = 4
    inputs = _inputs(rule, length, (q_heads, kv_heads))
    key = inputs[1]
    assert key is not None
    fewer = key.reshape(BATCH, length, kv_heads, KEY)[:, :, :k_heads]
    inputs[1] = np.repeat(fewer, kv_heads // k_heads, axis=2).reshape(BATCH, length, -1)
    expected = [array.astype(np.float32) for array in _attend(rule, inputs, (q_heads, kv_heads))]
    inputs[1] = fewer.reshape(BATCH, length, -1)
    results = run_body(
        LINEAR_ATTENTION,
        24,
        inputs,
        expected,
        q_num_heads=q_heads,
        kv_num_heads=kv_heads,
        update_rule=rule,
    )
    for who, found in results.items():
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6, err_msg=who)


def _model(dims: str = "B,S") -> ir.Model:
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 24, "com.microsoft": 1]>
        g (float[{dims},32] q, float[{dims},16] k, float[{dims},32] v, float[B,2,8,16] past,
           float[{dims},2] g, float[{dims},2] b) => (float[{dims},64] y, float[B,2,8,16] state) {{
            y, state = com.microsoft.LinearAttention <q_num_heads = 4, kv_num_heads = 2>
                (q, k, v, past, g, b)
        }}"""
    )
    assert not AttachFunctions()(model).refusals
    InlineFunctions()(model)
    return model


def test_one_session_serves_all_lengths() -> None:
    """C126: one token, then many, then one again, in one session with memory patterns on."""
    model = _model()
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = ["q", "k", "v", "past", "g", "b"]
    for length in (1, 128, 1, 5):
        inputs = _inputs("gated_delta", length, (4, 2))
        expected = _attend("gated_delta", inputs, (4, 2))
        found = session.run(None, dict(zip(names, inputs, strict=True)))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_loops_and_nodes() -> None:
    """None for one token; else over chunks, and within over blocks of rows of the inverse.

    The number of nodes does not depend on that of tokens.
    """
    counts = {}
    for tokens in ("1", "6", "4096", "S"):
        operators = [node.op_type for node in _model(f"B,{tokens}").graph.all_nodes()]
        assert {"Scan", "If"}.isdisjoint(operators)
        counts[tokens] = (
            operators.count("Loop"),
            sum(operator != "Constant" for operator in operators),
        )
    assert counts == {"1": (0, 37), "6": (2, 99), "4096": (2, 99), "S": (2, 99)}


def _node(inputs: str, **attributes: Any) -> ir.Node:
    values = [ir.val(name) if name != "-" else None for name in inputs.split()]
    attributes = {"q_num_heads": 4, "kv_num_heads": 2, **attributes}
    return ir.node(
        "LinearAttention",
        values,
        attributes,
        domain="com.microsoft",
        name="n",
        num_outputs=2,
    )


@pytest.mark.parametrize(
    ("inputs", "attributes", "reason"),
    [
        ("q k v p - b", {}, "lacks the input 'decay'; it is needed."),
        ("q k v p g", {"update_rule": "delta"}, "lacks the input 'beta'; it is needed."),
        (
            "q k v p g b",
            {"update_rule": "delta"},
            "has the input 'decay'; the body computes the operator without it.",
        ),
        (
            "q k v",
            {"update_rule": "other"},
            "has update_rule='other'; one of ('linear', 'gated', 'delta', 'gated_delta') is "
            "needed.",
        ),
        (
            "q k v",
            {"update_rule": "linear", "kv_num_heads": 3},
            "has 4 query heads and 3 key/value heads; one number a multiple of the other is "
            "needed.",
        ),
        (
            "q k v",
            {"update_rule": "linear", "state_window": 2},
            "has state_window=2; the body computes the operator with 0 only.",
        ),
    ],
)
def test_refusals(inputs: str, attributes: dict[str, Any], reason: str) -> None:
    """What the body would not compute has no body."""
    with pytest.raises(RefusedError) as refused:
        LINEAR_ATTENTION_BODY.for_call(_node(inputs, **attributes), 24)
    assert refused.value.reason == f"com.microsoft::LinearAttention (node 'n') {reason}"


def test_keys_that_serve_no_whole_number_of_states() -> None:
    node = _node("q k v", update_rule="linear")
    for value, width in zip(node.inputs, (32, 24, 32), strict=True):
        assert value is not None
        value.shape = ir.Shape(["B", "S", width])
    with pytest.raises(RefusedError) as refused:
        LINEAR_ATTENTION_BODY.for_call(node, 24)
    assert refused.value.reason == (
        "com.microsoft::LinearAttention (node 'n') has keys of width 24 beside 4 queries of width "
        "32 together; a number of keys that divides the 2 key/value heads is needed."
    )
