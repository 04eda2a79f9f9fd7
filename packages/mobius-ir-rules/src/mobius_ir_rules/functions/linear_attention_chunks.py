"""`LinearAttention` in chunks of tokens, with one decay a head or none.

Within a chunk, with `G[i]` the sum of the decays up to token `i`, `D[i, j] = exp(G[i] - G[j])` for
`i >= j` and otherwise 0, and `S` the state before the chunk, all tokens at once are

    new = v                                         linear, gated
    new = X beta (v - exp(G) k S)                   delta, gated_delta, where
    X = inverse(I + beta D (k k^T) below the diagonal)
    output = exp(G) q S + (D (q k^T)) new
    S = exp(G[last]) S + (exp(G[last] - G) k)^T new

One `Loop` over chunks carries `S`. All of a chunk's work is inside, so that memory does not grow
with the square of anything but a chunk, and no product has more than four axes.

**Exactness.** Exponents are sums of the decays that they stand for, not differences of longer
sums: a decay that forgets everything costs no digit of those after it, and a decay of minus
infinity is right. The inverse is by substitution (`unit_lower_inverse`). Where `beta k^T k` is
above 1.5, up to 2, and one key repeats, hardly anything damps an error and its rounding adds up: to
3e-5 after 200 tokens, 2e-6 token by token. Families have at most 1 (a sigmoid, keys of norm 1).

**Length.** `T` tokens are `ceil(T / 32)` chunks of one length, the shortest that holds them, so
that fewer tokens are padding than there are chunks, and a single token pays for no other.

**Speed.** Milliseconds of CPU time for 1, 128 and 1,024 tokens, float32, one core of an AMD EPYC,
ONNX Runtime 1.32, here / token by token / its kernel. gated_delta, 16 heads of 128 x 128: 0.23,
5.6, 47 / 0.24, 21, 162 / 0.06, 3.2, 28. gated, 64 heads of 128 x 64 that share a key: 0.38, 6.4, 54
/ 0.47, 46, 346 / 0.11, 6.0, 49. Slower were chunks of 64, and what needs no state computed before
the loop for all chunks at once. An `If` with straight-line nodes for one token saves a quarter of
its time, but OpenVINO 2026.4 gives wrong numbers where two layers in a row have one.

Sources: https://arxiv.org/abs/2405.21060 (state space duality), https://arxiv.org/abs/2412.06464
(gated delta rule), `transformers` `torch_chunk_gated_delta_rule`, `segment_sum`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.body import Integers
from mobius_ir_rules.functions.linear_attention_form import LinearAttentionForm, scaled_queries
from mobius_ir_rules.functions.token_loop import each_part
from mobius_ir_rules.functions.unit_lower_inverse import (
    Joints,
    Triangles,
    joints,
    triangles,
    unit_lower_inverse,
)

LONGEST = 32
"""Tokens of a chunk. Of 16, 32 and 64 the fastest on a CPU, whose work within a chunk grows."""


@dataclasses.dataclass(frozen=True)
class _Cut:
    """How tokens are cut; all int64 `[1]`, but for `pads`.

    Attributes:
        batch: Rows.
        tokens: Tokens of a row.
        count: Chunks of a row.
        length: Tokens of a chunk.
        padded: Tokens of all chunks.
        pads: What `Pad` adds to `[B, T, width]`.
    """

    batch: Any
    tokens: Any
    count: Any
    length: Any
    padded: Any
    pads: Any


def attend_in_chunks(
    op: OpBuilder, form: LinearAttentionForm, inputs: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Return the output `[B, T, heads * dv]` and the last state, both float32.

    Args:
        op: Builder.
        form: What decides the nodes.
        inputs: The call's inputs by name, float32, and a state.
    """
    integers = Integers(op)
    cut = _cut(op, integers, inputs["query"])
    inputs = dict(inputs)
    past = inputs.pop("past_state")
    if "beta" in inputs and "beta" not in form.per_head:  # One for all heads, or one a head.
        inputs["beta"] = op.Expand(inputs["beta"], integers.vector(1, 1, form.kv_heads))
    heads = {"query": form.q_heads, "key": form.k_heads}
    parts = {
        name: _chunks(op, integers, cut, x, heads.get(name, form.kv_heads))
        for name, x in inputs.items()
    }
    parts["query"] = scaled_queries(op, form, parts["query"])
    masks = (joints if "beta" in inputs else triangles)(op, cut.length, LONGEST)

    def step(inner: OpBuilder, chunk: Mapping[str, Any], state: Any) -> tuple[Any, Any]:
        return _update(inner, form, masks, chunk, state)

    state, stacked = each_part(op, parts, past, step, rank=4, name="chunk")
    count_of_heads = integers.vector(max(form.q_heads, form.kv_heads))
    shape = op.Concat(cut.count, cut.batch, count_of_heads, cut.length, integers.vector(-1), axis=0)
    # [chunks, B, heads, length, dv] -> [B, T, heads * dv]
    apart = op.Transpose(op.Reshape(stacked, shape), perm=[1, 0, 3, 2, 4])
    flat = op.Reshape(apart, op.Concat(cut.batch, cut.padded, integers.vector(-1), axis=0))
    return op.Slice(flat, integers.vector(0), cut.tokens, integers.vector(1)), state


def _cut(op: OpBuilder, integers: Integers, x: Any) -> _Cut:
    """Return how to cut `x`, `[B, T, width]`; no tokens are a chunk of one token of padding."""
    one = integers.vector(1)
    tokens = op.Shape(x, start=1, end=2)
    some = op.Max(tokens, one)
    count = op.Div(op.Add(some, integers.vector(LONGEST - 1)), integers.vector(LONGEST))
    length = op.Div(op.Add(some, op.Sub(count, one)), count)
    padded = op.Mul(count, length)
    before, after = integers.vector(0, 0, 0, 0), integers.vector(0)
    pads = op.Concat(before, op.Sub(padded, tokens), after, axis=0)
    return _Cut(op.Shape(x, end=1), tokens, count, length, padded, pads)


def _chunks(op: OpBuilder, integers: Integers, cut: _Cut, x: Any, heads: int) -> Any:
    """`[B, T, heads * d]` -> `[chunks, B, heads, length, d]`, padded with zeros."""
    last = integers.vector(heads, -1)
    shape = op.Concat(cut.batch, cut.count, cut.length, last, axis=0)
    return op.Transpose(op.Reshape(op.Pad(x, cut.pads), shape), perm=[1, 0, 3, 2, 4])


def _update(
    op: OpBuilder,
    form: LinearAttentionForm,
    masks: Triangles,
    chunk: Mapping[str, Any],
    state: Any,
) -> tuple[Any, Any]:
    """Return the state after a chunk, and its output; `[B, heads, ...]` all."""
    states = form.kv_heads
    query, new = _for_heads(op, chunk["query"], form.q_heads, states), chunk["value"]
    key = _for_heads(op, chunk["key"], form.k_heads, states)
    columns = op.Transpose(key, perm=[0, 1, 3, 2])
    decays = _decays(op, chunk["decay"], masks) if "decay" in chunk else None
    within = op.Cast(masks.lower, to=ir.DataType.FLOAT) if decays is None else decays.within
    if isinstance(masks, Joints):
        known = op.MatMul(key, state)
        if decays is not None:
            known = op.Mul(decays.before, known)
        overlaps = op.Mul(chunk["beta"], op.Mul(op.MatMul(key, columns), within))
        new = op.Mul(chunk["beta"], op.Sub(new, known))
        new = op.MatMul(unit_lower_inverse(op, overlaps, masks), new)

    def asked(x: Any, heads: int = states) -> Any:
        """Return what belongs to states, or to one key for all, once for each query."""
        return _for_heads(op, x, heads, form.q_heads)

    read = op.MatMul(query, asked(state))
    written = new
    if decays is not None:
        read = op.Mul(asked(decays.before), read)
        within = asked(within)
        written = op.Mul(decays.after, new)
        state = op.Mul(decays.whole, state)
    scores = op.MatMul(query, asked(columns, 1 if form.k_heads == 1 else states))
    output = op.Add(read, op.MatMul(op.Mul(scores, within), asked(new)))
    return op.Add(state, op.MatMul(columns, written)), output


def _for_heads(op: OpBuilder, x: Any, heads: int, wanted: int) -> Any:
    """`[B, heads, ...]` -> `[B, wanted, ...]`, copies of a head side by side.

    One head serves all others as it is, and what has more heads already stays.
    """
    if heads == 1 or heads >= wanted:
        return x
    copies = wanted // heads
    indices = [head // copies for head in range(wanted)]
    return op.Gather(x, op.Constant(value_ints=indices), axis=1)


@dataclasses.dataclass(frozen=True)
class _Decays:
    """Factors of what tokens wrote, and of states.

    Attributes:
        within: From token to token, `[..., length, length]`, 0 above the diagonal.
        before: From the state before to each token, `[..., length, 1]`.
        after: From each token to the state after, `[..., length, 1]`.
        whole: From the state before to the one after, `[..., 1, 1]`.
    """

    within: Any
    before: Any
    after: Any
    whole: Any


def _decays(op: OpBuilder, log: Any, masks: Triangles) -> _Decays:
    """Return the factors of decays in log space, `[..., length, 1]`."""
    rows, zero = op.Constant(value_int=-2), op.Constant(value_float=0.0)
    # Column j sums the decays after token j.
    sums = op.CumSum(op.Where(masks.strictly_lower, log, zero), rows)
    before = op.Exp(op.CumSum(log, rows))
    return _Decays(
        within=op.Where(masks.lower, op.Exp(sums), zero),
        before=before,
        after=op.Exp(op.CumSum(log, rows, exclusive=1, reverse=1)),
        whole=op.Gather(before, op.Constant(value_ints=[-1]), axis=2),
    )
