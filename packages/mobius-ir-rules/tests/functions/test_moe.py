"""The body of com.microsoft's MoE is ONNX Runtime's kernel, and costs what routed experts do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from mobius_ir_rules.functions.body import make_function
from mobius_ir_rules.functions.experts import tile_pairs
from mobius_ir_rules.functions.moe import MOE, MOE_BODY
from mobius_ir_rules.rule import RefusedError
from mobius_ir_rules.testing import run_model

Array = npt.NDArray[Any]
HIDDEN, INNER, EXPERTS = 16, 8, 6
SWIGLU = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.5}


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


PLAIN = {
    "relu": lambda x: np.maximum(x, 0.0),
    "relu2": lambda x: np.maximum(x, 0.0) ** 2,
    "silu": lambda x: x * _sigmoid(x),
    "gelu": _gelu,
    "identity": lambda x: x,
}


def _expert(x: Array, weights: dict[str, Array], expert: int, attributes: dict[str, Any]) -> Array:
    """Return what one expert makes of one token."""

    def layer(name: str, value: Array) -> Array:
        product = weights[f"{name}_weights"][expert] @ value
        bias = weights.get(f"{name}_bias")
        return product if bias is None else product + bias[expert]

    kind, inner = attributes["activation_type"], layer("fc1", x)
    if kind in PLAIN:
        return layer("fc2", PLAIN[kind](inner))
    fusion = attributes.get("swiglu_fusion", 0)
    if fusion == 0:
        gate, linear = inner, layer("fc3", x)
    elif fusion == 1:
        gate, linear = inner[0::2], inner[1::2]
    else:
        gate, linear = np.split(inner, 2)
    if kind == "geglu":
        return layer("fc2", _gelu(gate) * linear)
    limit, alpha = attributes.get("swiglu_limit", np.inf), attributes.get("activation_alpha", 1.0)
    linear = np.clip(linear, -limit, limit) + attributes.get("activation_beta", 0.0)
    if attributes.get("swiglu_limit_after_activation"):
        return layer("fc2", np.minimum(gate * _sigmoid(alpha * gate), limit) * linear)
    gate = np.minimum(gate, limit)
    return layer("fc2", gate * _sigmoid(alpha * gate) * linear)


def _moe(x: Array, probs: Array, weights: dict[str, Array], attributes: dict[str, Any]) -> Array:
    """A loop over tokens and their experts, float64."""
    wide = {name: value.astype(np.float64) for name, value in weights.items()}
    tokens = x.astype(np.float64).reshape(-1, HIDDEN)
    result = np.zeros_like(tokens)
    for token, logits in enumerate(probs.astype(np.float64)):
        chosen = np.argsort(-logits, kind="stable")[: attributes["k"]]
        share = np.exp(logits - logits.max())
        share /= share.sum()
        if attributes.get("normalize_routing_weights"):
            share /= share[chosen].sum()
        for expert in chosen:
            result[token] += share[expert] * _expert(tokens[token], wide, expert, attributes)
    return result.reshape(x.shape)


def _inputs(
    shape: tuple[int, ...], dtype: Any, fused: bool, gate: bool, bias: bool
) -> tuple[Array, Array, dict[str, Array]]:
    random = np.random.default_rng(0)
    tokens = math.prod(shape[:-1])
    rows = 2 * INNER if fused else INNER
    sizes = {"fc1": (rows, HIDDEN), "fc2": (HIDDEN, INNER)}
    if gate:
        sizes["fc3"] = (INNER, HIDDEN)
    weights: dict[str, Array] = {}
    for name, (rows_, columns) in sizes.items():
        matrix = random.standard_normal((EXPERTS, rows_, columns)) / math.sqrt(columns)
        weights[f"{name}_weights"] = matrix.astype(dtype)
        if bias:
            weights[f"{name}_bias"] = random.standard_normal((EXPERTS, rows_)).astype(dtype)
    x = random.standard_normal(shape).astype(dtype)
    probs = (2.0 * random.standard_normal((tokens, EXPERTS))).astype(dtype)
    return x, probs, weights


NAMES = [f"{name}_{part}" for name in ("fc1", "fc2", "fc3") for part in ("weights", "bias")]


@pytest.mark.parametrize(
    ("attributes", "kernel"),
    [
        *(({"activation_type": kind}, kind != "relu2") for kind in PLAIN),
        ({"activation_type": "relu", "k": 1}, True),
        ({"activation_type": "silu", "normalize_routing_weights": 1, "k": 3}, True),
        ({"activation_type": "swiglu", "swiglu_fusion": 1}, True),
        ({"activation_type": "swiglu", "swiglu_fusion": 1, **SWIGLU}, True),
        # ONNX Runtime's CPU kernel has interleaved swiglu only.
        ({"activation_type": "swiglu", "swiglu_fusion": 2, **SWIGLU}, False),
        ({"activation_type": "swiglu", **SWIGLU}, False),
        ({"activation_type": "swiglu", **SWIGLU, "swiglu_limit_after_activation": 1}, False),
        ({"activation_type": "geglu", "swiglu_fusion": 1}, False),
        ({"activation_type": "geglu", "swiglu_fusion": 2}, False),
    ],
)
@pytest.mark.parametrize(
    ("opset", "dtype", "tolerance"),
    [(17, np.float32, 3e-6), (24, np.float32, 3e-6), (24, np.float16, 1e-2)],
)
def test_body_equals_kernel(
    run_body: Any,
    opset: int,
    attributes: dict[str, Any],
    kernel: bool,
    dtype: Any,
    tolerance: float,
) -> None:
    """C029: biases in their slots, every activation, explicit alpha, beta and limit, both rows."""
    attributes = {"k": 2, **attributes}
    fused = bool(attributes.get("swiglu_fusion"))
    gate = attributes["activation_type"] == "swiglu" and not fused
    x, probs, weights = _inputs((7, HIDDEN), dtype, fused, gate, bias=True)
    expected = _moe(x, probs, weights, attributes).astype(dtype)
    results = run_body(
        MOE,
        opset,
        [x, probs, *(weights.get(name) for name in NAMES)],
        [expected],
        kernel=kernel and dtype is np.float32,
        **attributes,
    )
    for who, (found,) in results.items():
        np.testing.assert_allclose(
            found.astype(np.float64), expected, rtol=tolerance, atol=tolerance, err_msg=who
        )


@pytest.mark.parametrize("shape", [(1, HIDDEN), (2, 5, HIDDEN), (40, HIDDEN)])
@pytest.mark.parametrize("bias", ["none", "fc2"])
def test_shapes_and_omitted_biases(run_body: Any, shape: tuple[int, ...], bias: str) -> None:
    """C029: an omitted bias leaves its slot empty; one token, a batch, many tokens."""
    x, probs, weights = _inputs(shape, np.float32, False, False, bias=bias != "none")
    weights.pop("fc1_bias", None)
    attributes = {"k": 2, "activation_type": "silu"}
    expected = _moe(x, probs, weights, attributes).astype(np.float32)
    inputs = [x, probs, *(weights.get(name) for name in NAMES)]
    for who, (found,) in run_body(MOE, 24, inputs, [expected], **attributes).items():
        np.testing.assert_allclose(found, expected, rtol=3e-6, atol=3e-6, err_msg=who)


@pytest.mark.parametrize("load", ["all to one", "one crowded", "even"])
def test_skewed_routing(run_body: Any, load: str) -> None:
    """Tiles hold the pairs of any load, experts without a token included."""
    x, probs, weights = _inputs((24, HIDDEN), np.float32, False, False, bias=True)
    if load == "all to one":
        probs = np.tile(np.array([[5.0, 4.0, 0.0, 0.0, 0.0, 0.0]], np.float32), (24, 1))
    elif load == "one crowded":
        probs[:, 3] = 9.0
    attributes = {"k": 2, "activation_type": "relu"}
    expected = _moe(x, probs, weights, attributes).astype(np.float32)
    inputs = [x, probs, *(weights.get(name) for name in NAMES)]
    for who, (found,) in run_body(MOE, 24, inputs, [expected], **attributes).items():
        np.testing.assert_allclose(found, expected, rtol=3e-6, atol=3e-6, err_msg=who)


def _node(inputs: str, **attributes: Any) -> ir.Node:
    values = [ir.val(name) if name != "-" else None for name in inputs.split()]
    return ir.node("MoE", values, attributes, domain="com.microsoft", name="n")


def _tiles(chosen: Array, experts: int) -> tuple[Array, Array, Array]:
    """Return the tiles that the body lays the pairs out in."""
    k = chosen.shape[1]

    def body(op: Any, value: ir.Value) -> Any:
        tiles = tile_pairs(op, value, op.Constant(value_ints=list(range(experts))), k)
        return tiles.expert, tiles.pair, tiles.place

    outputs = ["expert", "pair", "place"]
    function = make_function(("test", "Tiles"), ["chosen"], outputs, [], body, 24)
    graph = function.graph.clone()
    for value in (*graph.inputs, *graph.outputs):
        value.type = ir.TensorType(ir.DataType.INT64)
        value.shape = ir.Shape([None] * (2 if value.name in ("chosen", "pair") else 1))
    found = run_model(ir.Model(graph, ir_version=10), {"chosen": chosen})
    expert, pair, place = (found[name] for name in outputs)
    return expert, pair, place


@pytest.mark.parametrize("tokens", [0, 1, 3, 16, 64])
@pytest.mark.parametrize("crowded", [False, True])
def test_rows_are_at_most_twice_the_pairs(tokens: int, crowded: bool) -> None:
    """The bound that the docstring states; each pair has its row, in a tile of its expert."""
    experts, k = 32, 4
    logits = np.random.default_rng(0).standard_normal((tokens, experts))
    logits[:, 0] += 9.0 * crowded
    chosen = np.argsort(-logits, axis=1)[:, :k].astype(np.int64)
    expert, pair, place = _tiles(chosen, experts)
    active = len(np.unique(chosen))
    tiles, height = pair.shape
    assert tiles < 2 * active or tiles == active
    assert tiles * height <= 2 * tokens * k + active
    assert len(np.unique(place)) == tokens * k
    np.testing.assert_array_equal(pair.reshape(-1)[place], np.arange(tokens * k))
    np.testing.assert_array_equal(expert[place // height], chosen.reshape(-1))
    if tokens == 1:
        assert (tiles, height) == (k, 1)


def test_number_of_nodes_depends_on_nothing() -> None:
    """No loop, no branch, and as many nodes for 128 experts as for 2."""
    function = MOE_BODY.for_call(_node("x p a b c d", k=8), 24)
    operators = [node.op_type for node in function.all_nodes() if node.op_type != "Constant"]
    assert set(operators).isdisjoint({"Loop", "Scan", "If"})
    assert len(operators) < 85


@pytest.mark.parametrize(
    ("inputs", "attributes", "reason"),
    [
        (
            "x p a",
            {},
            "com.microsoft::MoE (node 'n') lacks the input 'fc2_experts_weights'; it is needed.",
        ),
        (
            "x p a - b",
            {"use_sparse_mixer": 1},
            "com.microsoft::MoE (node 'n') has use_sparse_mixer=1; the body computes the operator "
            "with 0 only.",
        ),
        (
            "x p a - b",
            {"activation_type": "tanh"},
            "com.microsoft::MoE (node 'n') has activation_type='tanh'; one of ['geglu', 'gelu', "
            "'identity', 'relu', 'relu2', 'silu', 'swiglu'] is needed.",
        ),
        (
            "x p a - b",
            {"activation_type": "geglu"},
            "com.microsoft::MoE (node 'n') has swiglu_fusion=0 for geglu; 1 or 2 is needed.",
        ),
        (
            "x p a - b",
            {"activation_type": "swiglu"},
            "com.microsoft::MoE (node 'n') lacks fc3_experts_weights with "
            "activation_type='swiglu' and swiglu_fusion=0; it is needed for swiglu with "
            "swiglu_fusion=0, and for nothing else.",
        ),
        (
            "x p a - b - c",
            {"activation_type": "silu"},
            "com.microsoft::MoE (node 'n') has fc3_experts_weights with activation_type='silu' "
            "and swiglu_fusion=0; it is needed for swiglu with swiglu_fusion=0, and for nothing "
            "else.",
        ),
    ],
)
def test_refusals(inputs: str, attributes: dict[str, Any], reason: str) -> None:
    """What the body would not compute has no body."""
    with pytest.raises(RefusedError) as refused:
        MOE_BODY.for_call(_node(inputs, **attributes), 24)
    assert refused.value.reason == reason


def test_a_row_without_a_call_has_no_body() -> None:
    """The table's other rows are called with the opset alone."""
    with pytest.raises(TypeError, match=r"use for_call\(node, opset_version\)"):
        MOE_BODY(24)
