"""Tokens and their experts in -> the mixture of what those make of them, with standard operators.

Shared by the bodies of `MoE`, `QMoE` and `RoutedExperts`.

**Cost.** There are `P = tokens * k` pairs of a token and an expert. The pairs of one expert are
laid out in tiles of `B = ceil(P / active experts)` rows, each tile with a copy of the weights of
its expert, and the tiles are one batched product. An expert with `c` pairs takes `ceil(c / B)`
tiles, so whatever the router says there are less than twice as many tiles as active experts, and
less than `2 P + active experts` rows; in decoding (one token) exactly `k` experts of one row. The
number of nodes depends on nothing, and there is no loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.body import Integers
from mobius_ir_rules.functions.expert_activation import Activation, activate


@dataclasses.dataclass(frozen=True)
class Tiles:
    """Where the pairs of a token and an expert are computed.

    Attributes:
        expert: int64 `[tiles]`, the expert of each tile.
        pair: int64 `[tiles, rows]`, the pair of each row, counted through all tokens; pair 0 where
            the row is unused.
        place: int64 `[pairs]`, the row of each pair, counted through all tiles.
    """

    expert: ir.Value
    pair: ir.Value
    place: ir.Value


Weights = Callable[[OpBuilder, str, Tiles], Any]
"""Makes the weights `[tiles, out, in]` of `fc1`, `fc2` or `fc3` for each tile."""


def mixture(
    op: OpBuilder,
    tokens: ir.Value,
    chosen: Any,
    share: Any,
    experts: Any,
    biases: Mapping[str, ir.Value],
    weights: Weights,
    *,
    k: int,
    activation: Activation,
    separate_gate: bool = False,
    scale_input: bool = False,
    dtype: ir.DataType | None = None,
    hidden: int | None = None,
) -> Any:
    """Return the mixture of each token's experts, in the shape of `tokens`.

    Args:
        op: Where nodes are made.
        tokens: `[tokens, hidden]` or `[batch, sequence, hidden]`.
        chosen: int64 `[tokens, k]`, the experts of each token.
        share: `[tokens, k]`, how much each counts, in the type of `tokens`.
        experts: int64 `[experts]`, 0 and up: every expert there is.
        biases: `[experts, out]` by layer (`fc1`, `fc2`, `fc3`), of those that have one.
        weights: Makes the weights of a layer for each tile.
        k: Number of experts of a token.
        activation: What is between the products.
        separate_gate: Whether there is a layer `fc3` for the linear part.
        scale_input: Whether the share multiplies what goes into an expert, not what comes out.
        dtype: Element type of `tokens`, where it is known.
        hidden: Width of `tokens`, where it is known.
    """
    integers = Integers(op)
    vector = integers.vector
    tiles = tile_pairs(op, chosen, experts, k, integers)
    if hidden is None:
        rows = op.Concat(vector(-1), op.Shape(tokens, start=-1), axis=0)
    else:
        rows = vector(-1, hidden)
    flat = op.Reshape(tokens, rows)
    source = op.Div(tiles.pair, integers.scalar(k))  # the token of each row
    if scale_input:
        scaled = op.Mul(op.Unsqueeze(flat, vector(1)), op.Unsqueeze(share, vector(2)))
        flat, source = op.Reshape(scaled, rows), tiles.pair
    columns = op.Transpose(op.Gather(flat, source), perm=[0, 2, 1])

    def layer(name: str, x: Any) -> Any:
        # Weights first, activations as columns: no copy of a weight is transposed.
        product = op.MatMul(weights(op, name, tiles), x)
        if name not in biases:
            return product
        column = op.Unsqueeze(op.Gather(biases[name], tiles.expert), vector(2))
        return op.Add(product, column)

    inner = layer("fc1", columns)
    linear = layer("fc3", columns) if separate_gate else None
    outer = layer("fc2", activate(op, activation, inner, linear, dtype, integers))
    done = op.Reshape(op.Transpose(outer, perm=[0, 2, 1]), rows)
    # Unused rows are left behind here.
    pairs = op.Gather(done, op.Reshape(tiles.place, vector(-1, k)))
    if scale_input:
        mixed = op.ReduceSum(pairs, vector(1), keepdims=0)
    else:
        # [tokens, 1, k] x [tokens, k, hidden]: the sum over the experts of a token.
        mixed = op.MatMul(op.Unsqueeze(share, vector(1)), pairs)
    return op.Reshape(mixed, op.Shape(tokens), allowzero=1)


def softmax_route(
    op: OpBuilder,
    router_probs: ir.Value,
    router_weights: ir.Value | None,
    k: int,
    normalize: bool,
) -> tuple[Any, Any]:
    """Return the experts of each token, int64 `[tokens, k]`, and their shares, float32.

    Args:
        op: Where nodes are made.
        router_probs: `[tokens, experts]`: logits.
        router_weights: `[tokens, experts]`: shares where they are not the softmax of the logits.
        k: Number of experts of a token.
        normalize: Whether the shares of a token are divided by their sum.
    """
    integers = Integers(op)
    logits = op.Cast(router_probs, to=ir.DataType.FLOAT)
    best, chosen = op.TopK(logits, integers.vector(k), axis=-1, largest=1, sorted=1, _outputs=2)
    if router_weights is not None:
        share = op.GatherElements(op.Cast(router_weights, to=ir.DataType.FLOAT), chosen, axis=1)
        if normalize:
            share = op.Div(share, op.ReduceSum(share, integers.vector(1), keepdims=1))
    elif normalize:
        share = op.Softmax(best, axis=-1)
    else:
        share = op.GatherElements(op.Softmax(logits, axis=-1), chosen, axis=1)
    return chosen, share


def every_expert(op: OpBuilder, number: Any) -> Any:
    """Return all experts, int64 `[experts]`, of their number, int64 `[1]`."""
    integers = Integers(op)
    return op.Range(integers.scalar(0), op.Squeeze(number), integers.scalar(1))


def tile_pairs(
    op: OpBuilder, chosen: Any, experts: Any, k: int, integers: Integers | None = None
) -> Tiles:
    """Lay the pairs of a token and an expert out in tiles.

    Args:
        op: Where nodes are made.
        chosen: int64 `[tokens, k]`, the experts of each token.
        experts: int64 `[experts]`, 0 and up.
        k: Number of experts of a token.
        integers: Constants that are there already.
    """
    integers = integers or Integers(op)
    scalar, vector = integers.scalar, integers.vector
    zero, one = scalar(0), scalar(1)
    expert = op.Reshape(chosen, vector(-1))  # [pairs]
    number_of_pairs = op.Size(chosen)
    column = op.Unsqueeze(expert, vector(1))
    is_of = op.Cast(op.Equal(column, experts), to=ir.DataType.INT64)  # [pairs, experts]
    count = op.ReduceSum(is_of, vector(0), keepdims=0)  # [experts]
    # How many pairs of its expert come before each pair.
    seen = op.GatherElements(op.CumSum(is_of, zero, exclusive=1), column, axis=1)
    rank = op.Squeeze(seen, vector(1))
    active = op.ReduceSum(op.Min(count, one), vector(0), keepdims=0)
    # Both are 1 where there are no tokens.
    height = op.Max(_ceil_div(op, number_of_pairs, op.Max(active, one), one), one)
    needed = _ceil_div(op, count, height, one)  # [experts], in tiles
    end = op.CumSum(needed, zero)
    start = op.Sub(end, needed)
    place = op.Add(op.Mul(op.Gather(start, expert), height), rank)
    number = op.Gather(end, scalar(-1))
    tile = op.Range(zero, number, one)
    passed = op.LessOrEqual(end, op.Unsqueeze(tile, vector(1)))  # [tiles, experts]
    expert_of_tile = op.ReduceSum(op.Cast(passed, to=ir.DataType.INT64), vector(1), keepdims=0)
    every_pair = op.Range(zero, number_of_pairs, one)
    rows = op.Unsqueeze(op.Mul(number, height), vector(0))
    pair = op.ScatterElements(op.Expand(vector(0), rows), place, every_pair, axis=0)
    shape = op.Concat(vector(-1), op.Unsqueeze(height, vector(0)), axis=0)
    return Tiles(expert_of_tile, op.Reshape(pair, shape), place)


def _ceil_div(op: OpBuilder, a: Any, b: Any, one: Any) -> Any:
    return op.Div(op.Add(a, op.Sub(b, one)), b)
