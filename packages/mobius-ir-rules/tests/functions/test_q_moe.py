"""The body of com.microsoft's QMoE is ONNX Runtime's kernel where the kernels agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from mobius_ir_rules.functions.q_moe import Q_MOE, Q_MOE_BODY
from mobius_ir_rules.rule import RefusedError

Array = npt.NDArray[Any]
TOKENS, HIDDEN, INNER, EXPERTS, K = 7, 64, 32, 6, 2
RAW = {"weights_prepacked": 0, "quant_type": "int", "accuracy_level": 1}


def _unpack(packed: Array, bits: int) -> Array:
    parts = [packed >> shift & (2**bits - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*packed.shape[:-1], -1)


def _quantized(
    random: np.random.Generator, rows: int, columns: int, bits: int, block: int, zeros: bool
) -> tuple[list[Array | None], Array]:
    """Return packed weights, scales and zero points, and the weights that they stand for."""
    packed = random.integers(0, 256, (EXPERTS, rows, columns * bits // 8)).astype(np.uint8)
    blocks = columns // block if block else 1
    scales = random.uniform(0.5, 1.5, (EXPERTS, rows, blocks)) / 2**bits / 2
    zero_points, zero = None, np.full((EXPERTS, rows, blocks), 2 ** (bits - 1))
    if zeros:
        # Whole bytes along the blocks; without blocks, along the rows.
        shape = (EXPERTS, rows, -(-blocks * bits // 8)) if block else (EXPERTS, rows * bits // 8)
        zero_points = random.integers(0, 256, shape).astype(np.uint8)
        zero = _unpack(zero_points, bits)
        zero = zero[..., :blocks] if block else zero[..., None]
    integers = _unpack(packed, bits).reshape(EXPERTS, rows, blocks, -1)
    weights = (integers - zero[..., None].astype(np.float64)) * scales[..., None]
    scales = scales.astype(np.float32)
    return (
        [packed, scales if block else scales[..., 0], zero_points],
        weights.reshape(EXPERTS, rows, columns),
    )


@pytest.mark.parametrize(("opset", "block"), [(17, 16), (24, 0), (24, 32)])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("router_weights", [False, True])
def test_body_equals_kernel(
    run_body: Any, opset: int, bits: int, block: int, zeros: bool, router_weights: bool
) -> None:
    """C070: raw weights said to be raw; blocks of a power of two; both zero points."""
    random = np.random.default_rng(0)
    first, w1 = _quantized(random, INNER, HIDDEN, bits, block, zeros)
    second, w2 = _quantized(random, HIDDEN, INNER, bits, block, zeros)
    x = random.standard_normal((TOKENS, HIDDEN)).astype(np.float32)
    probs = (2.0 * random.standard_normal((TOKENS, EXPERTS))).astype(np.float32)
    mixing = random.uniform(0.1, 1.0, (TOKENS, EXPERTS)).astype(np.float32)
    b1, b2 = (random.standard_normal((EXPERTS, n)).astype(np.float32) for n in (INNER, HIDDEN))
    expected = np.zeros((TOKENS, HIDDEN))
    for token in range(TOKENS):
        chosen = np.argsort(-probs[token])[:K]
        share = mixing[token] if router_weights else np.exp(probs[token].astype(np.float64))
        share = share / share[chosen].sum() if not router_weights else share
        for expert in chosen:
            inner = w1[expert] @ x[token] + b1[expert]
            outer = w2[expert] @ (inner / (1.0 + np.exp(-inner))) + b2[expert]
            expected[token] += share[expert] * outer
    inputs = [x, probs, *first[:2], b1, *second[:2], b2, None, None, None, first[2], second[2]]
    if router_weights:
        inputs += [None, mixing]
    attributes = {"k": K, "activation_type": "silu", "expert_weight_bits": bits, **RAW}
    if block:
        attributes["block_size"] = block
    if not router_weights:
        attributes["normalize_routing_weights"] = 1
    results = run_body(
        Q_MOE,
        opset,
        inputs,
        [expected.astype(np.float32)],
        # The kernel computes 8-bit blocks with 8-bit activations at every accuracy level,
        # where it can.
        kernel=not (bits == 8 and block),
        **attributes,
    )
    for who, (found,) in results.items():
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=who)


SWIGLU = {"activation_type": "swiglu", "swiglu_fusion": 1}
CLIPPED = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.5}


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def _activate(inner: Array, attributes: dict[str, Any]) -> Array:
    """The documentation of the operator, gate and linear part in turn."""
    match attributes["activation_type"]:
        case "relu":
            return np.maximum(inner, 0.0)
        case "gelu":
            bent = np.tanh(np.sqrt(2.0 / np.pi) * (inner + 0.044715 * inner**3))
            return 0.5 * inner * (1.0 + bent)
        case "silu":
            return inner * _sigmoid(inner)
        case "swiglu":
            limit = attributes.get("swiglu_limit", np.inf)
            gate, linear = np.minimum(inner[0::2], limit), np.clip(inner[1::2], -limit, limit)
            gate = gate * _sigmoid(attributes.get("activation_alpha", 1.0) * gate)
            return gate * (linear + attributes.get("activation_beta", 0.0))
    return inner


@pytest.mark.parametrize(
    "attributes",
    [
        *({"activation_type": kind} for kind in ("relu", "gelu", "silu", "identity")),
        SWIGLU,
        SWIGLU | CLIPPED,
        SWIGLU | CLIPPED | {"k": 1},
    ],
    ids=lambda attributes: "-".join(map(str, attributes.values())),
)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("block", "zeros", "router_weights"), [(16, True, False), (32, False, True)]
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float16, 1e-2)])
def test_what_is_fused_is_computed_by_the_kernel(
    run_body: Any,
    attributes: dict[str, Any],
    bias: bool,
    block: int,
    zeros: bool,
    router_weights: bool,
    dtype: Any,
    tolerance: float,
) -> None:
    """C029, C070: every activation that rules make, in both element types that the CPU has."""
    random = np.random.default_rng(1)
    rows = 2 * INNER if "swiglu" in attributes.values() else INNER
    first, w1 = _quantized(random, rows, HIDDEN, 4, block, zeros)
    second, w2 = _quantized(random, HIDDEN, INNER, 4, block, zeros)
    attributes = {"k": K, "expert_weight_bits": 4, "block_size": block, **RAW, **attributes}
    attributes["normalize_routing_weights"] = int(not router_weights)
    x = random.standard_normal((TOKENS, HIDDEN)).astype(dtype)
    # Far enough apart for float16.
    probs = random.permuted(np.tile(np.arange(EXPERTS) / 2, (TOKENS, 1)), axis=1).astype(dtype)
    mixing = random.uniform(0.1, 1.0, (TOKENS, EXPERTS)).astype(dtype)
    biases = [random.standard_normal((EXPERTS, n)).astype(dtype) for n in (rows, HIDDEN)]
    scales = [each[1].astype(dtype) for each in (first, second)]
    w1, w2 = (
        weight * np.repeat(scale.astype(np.float64) / parts[1], block, axis=-1)
        for weight, scale, parts in zip((w1, w2), scales, (first, second), strict=True)
    )
    expected = np.zeros((TOKENS, HIDDEN))
    for token in range(TOKENS):
        chosen = np.argsort(-probs[token].astype(np.float64))[: attributes["k"]]
        share = np.exp(probs[token].astype(np.float64))
        share = mixing[token].astype(np.float64) if router_weights else share / share[chosen].sum()
        for expert in chosen:
            inner = w1[expert] @ x[token].astype(np.float64)
            inner = _activate(inner + bias * biases[0][expert].astype(np.float64), attributes)
            outer = w2[expert] @ inner + bias * biases[1][expert].astype(np.float64)
            expected[token] += share[expert] * outer
    b1, b2 = biases if bias else (None, None)
    inputs = [x, probs, first[0], scales[0], b1, second[0], scales[1], b2]
    inputs += [None, None, None, first[2], second[2], None, mixing if router_weights else None]
    assert 0.5 < np.abs(expected).max() < 50.0
    results = run_body(Q_MOE, 24, inputs, [expected.astype(dtype)], **attributes)
    assert "kernel" in results
    for who, (found,) in results.items():
        np.testing.assert_allclose(
            found.astype(np.float64), expected, rtol=tolerance, atol=4 * tolerance, err_msg=who
        )


def _node(count: int, **attributes: Any) -> ir.Node:
    values = [ir.val(f"v{index}") for index in range(count)]
    if count == 8:
        values[4] = values[7] = None  # type: ignore[call-overload]
    return ir.node("QMoE", values, attributes, domain="com.microsoft", name="n")


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        (
            RAW,
            "has normalize_routing_weights=0 and no router_weights, which kernels compute "
            "differently; the one or the other is needed.",
        ),
        (
            {"normalize_routing_weights": 1},
            "has quant_type='int' and weights_prepacked=-1; 'int' and 0 are needed, because other "
            "layouts are an execution provider's own.",
        ),
        (
            {**RAW, "quant_type": "fp8"},
            "has quant_type='fp8' and weights_prepacked=0; 'int' and 0 are needed, because other "
            "layouts are an execution provider's own.",
        ),
        (
            {**RAW, "normalize_routing_weights": 1, "fc2_expert_weight_bits": 3},
            "has experts of (4, 3, 4) bits; only (2, 4, 8) are supported.",
        ),
    ],
)
def test_refusals(attributes: dict[str, Any], reason: str) -> None:
    """C070: what an execution provider reads in its own way has no body."""
    with pytest.raises(RefusedError) as refused:
        Q_MOE_BODY.for_call(_node(8, **attributes), 24)
    assert refused.value.reason == f"com.microsoft::QMoE (node 'n') {reason}"
