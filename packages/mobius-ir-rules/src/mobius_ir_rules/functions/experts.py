"""Tokens and router logits in -> the mixture of their routed experts, with standard operators.

Shared by the bodies of `MoE` and `QMoE`; see `mobius_ir_rules.functions.moe` for the layout in
tiles and what it costs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.rule import refuse
from mobius_ir_rules.values import describe_node, float_attribute, int_attribute, string_attribute

_GATED = ("swiglu", "geglu")
_PLAIN = ("relu", "relu2", "gelu", "silu", "identity")


@dataclasses.dataclass(frozen=True)
class Activation:
    """What an expert computes between its products.

    The gated ones, of a gate `g` and a linear part `l`: swiglu is
    `G * sigmoid(alpha * G) * (L + beta)` with `G = min(g, limit)`, `L = clip(l, -limit, limit)`;
    with `limit_after`, `min(g * sigmoid(alpha * g), limit)` stands for the first factor. geglu is
    `gelu(g) * l`. gelu is the tanh form, as in ONNX Runtime's kernels.

    Attributes:
        kind: Value of `activation_type`.
        fusion: 0: `g` and `l` are products of their own, 1: rows alternate, 2: `g` comes first.
        alpha: Factor in swiglu's sigmoid.
        beta: Added to swiglu's linear part.
        limit: Clips swiglu's parts; infinite for no clipping.
        limit_after: Whether the activated gate is clipped instead of the gate.
    """

    kind: str
    fusion: int
    alpha: float
    beta: float
    limit: float
    limit_after: bool


@dataclasses.dataclass(frozen=True)
class Tiles:
    """Where the pairs of a token and an expert are computed.

    Attributes:
        expert: int64 `[tiles]`, the expert of each tile.
        token: int64 `[tiles, rows]`, the token of each row; token 0 where the row is unused.
        place: int64 `[pairs]`, the row of each pair, counted through all tiles.
    """

    expert: ir.Value
    token: ir.Value
    place: ir.Value


Weights = Callable[[OpBuilder, str, Tiles], Any]
"""Makes the weights `[tiles, out, in]` of `fc1`, `fc2` or `fc3` for each tile."""


def read_activation(node: ir.Node, *, separate_gate: bool) -> Activation:
    """Return what the call's experts compute.

    Raises:
        RefusedError: If the attributes contradict each other or the operator's documentation.
    """
    kind = string_attribute(node, "activation_type", "relu")
    fusion = int_attribute(node, "swiglu_fusion", 0)
    if kind not in _GATED + _PLAIN:
        refuse(
            f"{describe_node(node)} has activation_type={kind!r}; one of "
            f"{sorted(_GATED + _PLAIN)} is needed.",
            node,
        )
    if fusion not in (0, 1, 2) or (kind == "geglu" and not fusion):
        refuse(
            f"{describe_node(node)} has swiglu_fusion={fusion} for {kind}; "
            f"{'1 or 2' if kind == 'geglu' else '0, 1 or 2'} is needed.",
            node,
        )
    if separate_gate is not (kind == "swiglu" and fusion == 0):
        refuse(
            f"{describe_node(node)} {'has' if separate_gate else 'lacks'} fc3_experts_weights "
            f"with activation_type={kind!r} and swiglu_fusion={fusion}; it is needed for swiglu "
            "with swiglu_fusion=0, and for nothing else.",
            node,
        )
    return Activation(
        kind=kind,
        fusion=fusion,
        alpha=float_attribute(node, "activation_alpha", 1.0),
        beta=float_attribute(node, "activation_beta", 0.0),
        limit=float_attribute(node, "swiglu_limit", math.inf),
        limit_after=bool(int_attribute(node, "swiglu_limit_after_activation", 0)),
    )


def activation_attributes(activation: Activation) -> list[ir.Attr]:
    """Return the operator's attributes that say `activation`; an infinite limit is left out."""
    attributes = [
        ir.AttrString("activation_type", activation.kind),
        ir.AttrFloat32("activation_alpha", activation.alpha),
        ir.AttrFloat32("activation_beta", activation.beta),
        ir.AttrInt64("swiglu_fusion", activation.fusion),
        ir.AttrInt64("swiglu_limit_after_activation", int(activation.limit_after)),
    ]
    if math.isfinite(activation.limit):
        attributes.append(ir.AttrFloat32("swiglu_limit", activation.limit))
    return attributes


def routed_experts(
    op: OpBuilder,
    tokens: ir.Value,
    router_probs: ir.Value,
    biases: Mapping[str, ir.Value],
    weights: Weights,
    *,
    k: int,
    normalize: bool,
    activation: Activation,
    separate_gate: bool,
    router_weights: ir.Value | None = None,
) -> Any:
    """Return the mixture of each token's `k` best experts, in the shape of `tokens`.

    Args:
        op: Where nodes are made.
        tokens: `[tokens, hidden]` or `[batch, sequence, hidden]`.
        router_probs: `[tokens, experts]`: logits.
        biases: `[experts, out]` by layer (`fc1`, `fc2`, `fc3`), of those that have one.
        weights: Makes the weights of a layer for each tile.
        k: Number of experts of a token.
        normalize: Whether the routing weights of a token are divided by their sum.
        activation: What is between the products.
        separate_gate: Whether there is a layer `fc3` for the linear part.
        router_weights: `[tokens, experts]`: mixing weights where they are not the softmax of the
            logits.
    """
    share, chosen = _route(op, router_probs, router_weights, k, normalize)
    tiles = tile_pairs(op, chosen, op.Shape(router_probs, start=1), k)
    width = op.Shape(tokens, start=-1)
    rows = op.Gather(op.Reshape(tokens, op.Concat(_ints(op, -1), width, axis=0)), tiles.token)

    def layer(name: str, x: Any) -> Any:
        # Weights first, activations as columns: no copy of a weight is transposed.
        product = op.MatMul(weights(op, name, tiles), x)
        if name not in biases:
            return product
        column = op.Unsqueeze(op.Gather(biases[name], tiles.expert), _ints(op, 2))
        return op.Add(product, column)

    columns = op.Transpose(rows, perm=[0, 2, 1])
    inner = layer("fc1", columns)
    linear = layer("fc3", columns) if separate_gate else None
    outer = layer("fc2", _activate(op, activation, inner, linear))
    done = op.Reshape(op.Transpose(outer, perm=[0, 2, 1]), op.Concat(_ints(op, -1), width, axis=0))
    # Unused rows are left behind here.
    pairs = op.Reshape(op.Gather(done, tiles.place), op.Concat(_ints(op, -1, k), width, axis=0))
    # [tokens, 1, k] x [tokens, k, hidden]: the sum over the experts of a token.
    factor = op.CastLike(op.Unsqueeze(share, _ints(op, 1)), tokens)
    return op.Reshape(op.MatMul(factor, pairs), op.Shape(tokens), allowzero=1)


def _route(
    op: OpBuilder,
    router_probs: ir.Value,
    router_weights: ir.Value | None,
    k: int,
    normalize: bool,
) -> tuple[Any, Any]:
    """Return the share of each chosen expert, float32 `[tokens, k]`, and which they are, int64."""
    logits = op.Cast(router_probs, to=ir.DataType.FLOAT)
    best, chosen = op.TopK(logits, _ints(op, k), axis=-1, largest=1, sorted=1, _outputs=2)
    if router_weights is not None:
        share = op.GatherElements(op.Cast(router_weights, to=ir.DataType.FLOAT), chosen, axis=1)
        if normalize:
            share = op.Div(share, op.ReduceSum(share, _ints(op, 1), keepdims=1))
    elif normalize:
        share = op.Softmax(best, axis=-1)
    else:
        share = op.GatherElements(op.Softmax(logits, axis=-1), chosen, axis=1)
    return share, chosen


def tile_pairs(op: OpBuilder, chosen: Any, experts: Any, k: int) -> Tiles:
    """Lay the pairs of a token and an expert out in tiles.

    Args:
        op: Where nodes are made.
        chosen: int64 `[tokens, k]`, the experts of each token.
        experts: int64 `[1]`, the number of experts.
        k: Number of experts of a token.
    """
    expert = op.Reshape(chosen, _ints(op, -1))  # [pairs]
    zero, one = _int(op, 0), _int(op, 1)
    all_experts = op.Range(zero, op.Squeeze(experts), one)
    is_of = op.Cast(
        op.Equal(op.Unsqueeze(expert, _ints(op, 1)), all_experts), to=ir.DataType.INT64
    )  # [pairs, experts]
    count = op.ReduceSum(is_of, _ints(op, 0), keepdims=0)  # [experts]
    # How many pairs of its expert come before each pair.
    seen = op.GatherElements(op.CumSum(is_of, zero), op.Unsqueeze(expert, _ints(op, 1)), axis=1)
    rank = op.Sub(op.Squeeze(seen, _ints(op, 1)), one)
    active = op.ReduceSum(op.Min(count, one), _ints(op, 0), keepdims=0)
    # Both are 1 where there are no tokens.
    height = op.Max(_ceil_div(op, op.Squeeze(op.Shape(expert)), op.Max(active, one)), one)
    needed = _ceil_div(op, count, height)  # [experts], in tiles
    end = op.CumSum(needed, zero)
    start = op.Sub(end, needed)
    place = op.Add(op.Mul(op.Gather(start, expert), height), rank)
    number = op.Gather(end, op.Sub(op.Squeeze(experts), one))
    tile = op.Range(zero, number, one)
    passed = op.LessOrEqual(end, op.Unsqueeze(tile, _ints(op, 1)))  # [tiles, experts]
    expert_of_tile = op.ReduceSum(op.Cast(passed, to=ir.DataType.INT64), _ints(op, 1), keepdims=0)
    pair = op.Range(zero, op.Squeeze(op.Shape(expert)), one)
    rows = op.Unsqueeze(op.Mul(number, height), _ints(op, 0))
    token = op.ScatterElements(
        op.Expand(_ints(op, 0), rows), place, op.Div(pair, _int(op, k)), axis=0
    )
    shape = op.Concat(
        op.Unsqueeze(number, _ints(op, 0)), op.Unsqueeze(height, _ints(op, 0)), axis=0
    )
    return Tiles(expert_of_tile, op.Reshape(token, shape, allowzero=1), place)


def _ceil_div(op: OpBuilder, a: Any, b: Any) -> Any:
    return op.Div(op.Add(a, op.Sub(b, _int(op, 1))), b)


def _activate(op: OpBuilder, activation: Activation, inner: Any, linear: Any | None) -> Any:
    """Return `[tiles, intermediate, rows]` from the first product(s)."""
    match activation.kind:
        case "identity":
            return inner
        case "relu":
            return op.Relu(inner)
        case "relu2":
            positive = op.Relu(inner)
            return op.Mul(positive, positive)
        case "silu":
            return op.Mul(inner, op.Sigmoid(inner))
        case "gelu":
            return _gelu(op, inner)
    gate = inner
    if linear is None:
        gate, linear = _split(op, inner, activation.fusion)
    if activation.kind == "geglu":
        return op.Mul(_gelu(op, gate), linear)
    if math.isfinite(activation.limit):
        limit = op.CastLike(_float(op, activation.limit), inner)
        linear = op.Max(op.Min(linear, limit), op.Neg(limit))
        if not activation.limit_after:
            gate = op.Min(gate, limit)
    turned = gate
    if activation.alpha != 1.0:
        turned = op.Mul(gate, op.CastLike(_float(op, activation.alpha), inner))
    gate = op.Mul(gate, op.Sigmoid(turned))
    if activation.limit_after and math.isfinite(activation.limit):
        gate = op.Min(gate, op.CastLike(_float(op, activation.limit), inner))
    if activation.beta:
        linear = op.Add(linear, op.CastLike(_float(op, activation.beta), inner))
    return op.Mul(gate, linear)


def _split(op: OpBuilder, inner: Any, fusion: int) -> tuple[Any, Any]:
    """Return gate and linear part, rows of axis 1 in turn or in halves."""
    height = op.Shape(inner, start=1, end=2)
    half = op.Div(height, _ints(op, 2))
    ends = op.Shape(inner, end=1), op.Shape(inner, start=2)
    middle = [half, _ints(op, 2)] if fusion == 1 else [_ints(op, 2), half]
    parts = op.Reshape(inner, op.Concat(ends[0], *middle, ends[1], axis=0), allowzero=1)
    axis = 2 if fusion == 1 else 1
    return op.Gather(parts, _int(op, 0), axis=axis), op.Gather(parts, _int(op, 1), axis=axis)


def _gelu(op: OpBuilder, x: Any) -> Any:
    """Return the tanh form of GELU; `Gelu` itself is of opset 20."""

    def constant(value: float) -> Any:
        return op.CastLike(_float(op, value), x)

    cubic = op.Add(op.Mul(op.Mul(op.Mul(x, x), x), constant(0.044715)), x)
    bent = op.Tanh(op.Mul(cubic, constant(math.sqrt(2.0 / math.pi))))
    return op.Mul(op.Mul(x, constant(0.5)), op.Add(bent, constant(1.0)))


def _int(op: OpBuilder, value: int) -> Any:
    return op.Constant(value_int=value)


def _ints(op: OpBuilder, *values: int) -> Any:
    return op.Constant(value_ints=list(values))


def _float(op: OpBuilder, value: float) -> Any:
    return op.Constant(value_float=value)
