"""The body of RoutedExperts is a loop over tokens and the experts chosen for them."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx.reference
import onnx_ir as ir
import pytest

from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.functions.routed_experts import ROUTED_EXPERTS, ROUTED_EXPERTS_BODY
from mobius_ir_rules.passes import InlineFunctions
from mobius_ir_rules.rule import RefusedError

Array = npt.NDArray[Any]
HIDDEN, INNER, EXPERTS, K = 16, 8, 6, 2
CLIPPED = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.5}


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf)(x)


PLAIN = {
    "relu": lambda x: np.maximum(x, 0.0),
    "relu2": lambda x: np.maximum(x, 0.0) ** 2,
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0))),
    "identity": lambda x: x,
}
GATED = {"swiglu": "silu", "geglu": "gelu", "geglu_erf": "gelu_erf"}


def _activate(inner: Array, attributes: dict[str, Any]) -> Array:
    kind = attributes["activation_type"]
    if kind in PLAIN:
        return PLAIN[kind](inner)
    halves = attributes["swiglu_fusion"] == 2
    gate, linear = np.split(inner, 2) if halves else (inner[0::2], inner[1::2])
    if kind != "swiglu":
        return PLAIN[GATED[kind]](gate) * linear
    limit, alpha = attributes.get("swiglu_limit", np.inf), attributes.get("activation_alpha", 1.0)
    gate, linear = np.minimum(gate, limit), np.clip(linear, -limit, limit)
    factor = linear + attributes.get("activation_beta", 0.0)
    return gate / (1.0 + np.exp(-alpha * gate)) * factor


def _reference(inputs: list[Array | None], attributes: dict[str, Any]) -> Array:
    """A loop over tokens and their experts, float64."""
    x, chosen, share, *weights = inputs
    assert x is not None
    assert chosen is not None
    assert share is not None
    fc1, fc2, fc1_bias, fc2_bias = (None if w is None else w.astype(np.float64) for w in weights)
    assert fc1 is not None
    assert fc2 is not None
    tokens = x.astype(np.float64).reshape(-1, HIDDEN)
    result = np.zeros_like(tokens)
    for token, value in enumerate(tokens):
        for expert, part in zip(chosen[token], share[token].astype(np.float64), strict=True):
            scaled = value * part if attributes.get("scale_input") else value
            inner = fc1[expert] @ scaled + (0.0 if fc1_bias is None else fc1_bias[expert])
            outer = fc2[expert] @ _activate(inner, attributes)
            outer = outer + (0.0 if fc2_bias is None else fc2_bias[expert])
            result[token] += outer if attributes.get("scale_input") else part * outer
    return result.reshape(x.shape)


def _inputs(
    shape: tuple[int, ...], dtype: Any, *, gated: bool, bias: bool = True, k: int = K
) -> list[Array | None]:
    random = np.random.default_rng(0)
    tokens, rows = math.prod(shape[:-1]), 2 * INNER if gated else INNER
    chosen = np.argsort(random.standard_normal((tokens, EXPERTS)), axis=1)[:, :k]
    weights: list[Array | None] = [
        (random.standard_normal(size) / math.sqrt(size[-1])).astype(dtype)
        for size in ((EXPERTS, rows, HIDDEN), (EXPERTS, HIDDEN, INNER))
    ]
    biases: list[Array | None] = [
        random.standard_normal((EXPERTS, size)).astype(dtype) for size in (rows, HIDDEN)
    ]
    return [
        random.standard_normal(shape).astype(dtype),
        chosen.astype(np.int64),
        random.uniform(0.1, 1.5, (tokens, k)).astype(np.float32),
        *weights,
        *(biases if bias else []),
    ]


def _check(run_body: Any, opset: int, inputs: list[Array | None], **attributes: Any) -> None:
    x = inputs[0]
    assert x is not None
    padded = [*inputs, *[None] * (7 - len(inputs))]
    expected = _reference(padded, attributes).astype(x.dtype)
    tolerance = 3e-6 if x.dtype == np.float32 else 1e-2
    results = run_body(ROUTED_EXPERTS, opset, inputs, [expected], kernel=False, **attributes)
    for who, (found,) in results.items():
        np.testing.assert_allclose(
            found.astype(np.float64),
            expected.astype(np.float64),
            rtol=tolerance,
            atol=tolerance,
            err_msg=who,
        )


@pytest.mark.parametrize(
    "attributes",
    [
        *({"activation_type": kind} for kind in PLAIN),
        *(
            {"activation_type": kind, "swiglu_fusion": fusion}
            for kind in GATED
            for fusion in (1, 2)
        ),
        {"activation_type": "swiglu", "swiglu_fusion": 1, **CLIPPED},
        {"activation_type": "swiglu", "swiglu_fusion": 2, **CLIPPED},
    ],
    ids=str,
)
@pytest.mark.parametrize(("opset", "dtype"), [(17, np.float32), (24, np.float16)])
def test_activations(run_body: Any, opset: int, dtype: Any, attributes: dict[str, Any]) -> None:
    inputs = _inputs((7, HIDDEN), dtype, gated=attributes["activation_type"] in GATED)
    _check(run_body, opset, inputs, k=K, **attributes)


@pytest.mark.parametrize("shape", [(1, HIDDEN), (2, 5, HIDDEN), (40, HIDDEN)])
@pytest.mark.parametrize("scale_input", [0, 1])
@pytest.mark.parametrize("k", [1, 3])
def test_shapes_and_scaled_inputs(
    run_body: Any, shape: tuple[int, ...], scale_input: int, k: int
) -> None:
    """Llama 4's shares multiply what goes in: silu is not linear, so that is something else."""
    attributes = {"activation_type": "silu", "scale_input": scale_input}
    inputs = _inputs(shape, np.float32, gated=False, bias=False, k=k)
    _check(run_body, 24, inputs, k=k, **attributes)


def test_one_bias_alone(run_body: Any) -> None:
    """Case C029: an omitted bias does not shift the other one."""
    inputs = _inputs((7, HIDDEN), np.float32, gated=False)
    inputs[5] = None
    _check(run_body, 24, inputs, k=K, activation_type="relu")


def _node(inputs: str, dtype: ir.DataType | None = ir.DataType.FLOAT, **attributes: Any) -> ir.Node:
    values = [ir.val(name) if name != "-" else None for name in inputs.split()]
    if values and values[0] is not None and dtype is not None:
        values[0].dtype = dtype
    return ir.node("RoutedExperts", values, attributes, domain="mobius.moe", name="n")


def test_shares_are_rounded_to_the_type_of_the_tokens() -> None:
    """By a Cast where that is known, so that runtimes without CastLike have a kernel."""
    casts = {}
    for dtype in (ir.DataType.FLOAT, ir.DataType.BFLOAT16, None):
        body = ROUTED_EXPERTS_BODY.for_call(_node("x c s a b", dtype, k=2), 24)
        to = [node.attributes.get_int("to", 0) for node in body if node.op_type == "Cast"]
        likes = [node for node in body if node.op_type == "CastLike"]
        casts[dtype] = (to.count(ir.DataType.BFLOAT16), len(likes))
    assert casts == {ir.DataType.FLOAT: (0, 0), ir.DataType.BFLOAT16: (1, 0), None: (0, 1)}


def test_bfloat16() -> None:
    """Products of bfloat16 have no kernels here; the reference evaluator has them."""
    inputs = _inputs((5, HIDDEN), ml_dtypes.bfloat16, gated=True, bias=False)
    names = ["x", "chosen", "share", "fc1", "fc2"]
    values = [
        ir.val(name, ir.DataType.from_numpy(array.dtype), array.shape)
        for name, array in zip(names, inputs, strict=True)
        if array is not None
    ]
    attributes = {"k": K, "activation_type": "swiglu", "swiglu_fusion": 2}
    node = ir.node("RoutedExperts", values, attributes, domain="mobius.moe")
    node.outputs[0].name = "y"
    node.outputs[0].type, node.outputs[0].shape = values[0].type, values[0].shape
    graph = ir.Graph(
        values, node.outputs, nodes=[node], opset_imports={"": 24, "mobius.moe": 1}, name="g"
    )
    model = ir.Model(graph, ir_version=10)
    AttachFunctions(overloads=True)(model)
    InlineFunctions()(model)
    evaluator = onnx.reference.ReferenceEvaluator(ir.to_proto(model))
    (found,) = evaluator.run(None, dict(zip(names, inputs, strict=True)))
    expected = _reference([*inputs, None, None], attributes)
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize(
    ("inputs", "attributes", "reason"),
    [
        ("x c s a", {"k": 2}, "lacks the input 'fc2'; it is needed."),
        ("x c s a b", {}, "has k=0; at least 1 is needed."),
        (
            "x c s a b",
            {"k": 2, "activation_type": "swiglu"},
            "has swiglu_fusion=0 for swiglu; 1 or 2 is needed.",
        ),
        (
            "x c s a b",
            {"k": 2, "activation_type": "geglu_erf"},
            "has swiglu_fusion=0 for geglu_erf; 1 or 2 is needed.",
        ),
    ],
)
def test_refusals(inputs: str, attributes: dict[str, Any], reason: str) -> None:
    with pytest.raises(RefusedError) as refused:
        ROUTED_EXPERTS_BODY.for_call(_node(inputs, **attributes), 24)
    assert refused.value.reason == f"mobius.moe::RoutedExperts (node 'n') {reason}"
