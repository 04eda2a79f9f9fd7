"""The body of GroupQueryAttention is ONNX Runtime's kernel, in prefill, chunks and decoding."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from mobius_ir_rules.functions.group_query_attention import (
    GROUP_QUERY_ATTENTION,
    GROUP_QUERY_ATTENTION_BODY,
)
from mobius_ir_rules.rule import RefusedError

Array = npt.NDArray[Any]
HEADS, KV_HEADS = 4, 2


@dataclasses.dataclass(frozen=True)
class Call:
    """One call. `lengths` are the tokens of each row after the step, by default all of them."""

    name: str
    batch: int = 2
    sequence: int = 5
    past: int = 0
    lengths: tuple[int, ...] = ()
    capacity: int = 0
    head_size: int = 16
    packed: bool = False
    rotary: int = 0
    positions: bool = False
    bias: bool = False
    sink: bool = False
    cache: bool = True
    norm: bool = False
    kernel: bool = True
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    @property
    def totals(self) -> list[int]:
        return list(self.lengths) or [self.past + self.sequence] * self.batch


CALLS = [
    Call("prompt"),
    Call("prompt without cache", cache=False),
    Call("prompt, padded rows", lengths=(5, 3)),
    Call("prompt into a buffer", lengths=(5, 3), capacity=12),
    Call("decode", sequence=1, past=7),
    Call("decode, rows of two lengths", sequence=1, past=7, lengths=(8, 5)),
    Call("decode in a buffer", sequence=1, past=7, lengths=(8, 5), capacity=20),
    Call("chunk", batch=1, sequence=3, past=6),
    Call("chunk in a buffer", batch=1, sequence=3, past=6, capacity=32),
    Call("packed", packed=True),
    Call("rotary", rotary=16, sequence=1, past=6, lengths=(7, 4)),
    Call("rotary, part of a head", rotary=16, head_size=32),
    Call("rotary, interleaved", rotary=16, attributes={"rotary_interleaved": 1}),
    Call(
        "rotary, interleaved, part, packed, chunk",
        batch=1,
        sequence=3,
        past=4,
        rotary=16,
        head_size=32,
        packed=True,
        attributes={"rotary_interleaved": 1},
    ),
    # The kernel reads position_ids in some cases only.
    Call("given positions", rotary=16, positions=True, kernel=False),
    Call("window", sequence=6, attributes={"local_window_size": 3}),
    Call("window, decode", sequence=1, past=7, attributes={"local_window_size": 3}),
    Call("soft cap", attributes={"softcap": 1.5}),
    Call("scale", attributes={"scale": 0.7}),
    Call("bias after the soft cap", bias=True, attributes={"softcap": 1.5}),
    Call("sink, neither scaled nor capped", sink=True, attributes={"softcap": 2.0, "scale": 0.5}),
    Call("smooth softmax", attributes={"smooth_softmax": 1}),
    Call("not causal", attributes={"causal": 0}),
    # The CPU kernel has no norms.
    Call("norms", rotary=16, norm=True, kernel=False, attributes={"qk_norm_epsilon": 0.1}),
]


def _inputs(call: Call, dtype: Any) -> list[Array | None]:
    random = np.random.default_rng(0)

    def noise(*shape: int) -> Array:
        return random.standard_normal(shape).astype(dtype)

    batch, length, size = call.batch, call.sequence, call.head_size
    total = call.past + length
    query, key, value = (
        noise(batch, length, heads * size) for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    slots = call.capacity or call.past
    caches = [noise(batch, KV_HEADS, slots, size) if call.cache else None for _ in range(2)]
    angles = random.uniform(0.0, 6.0, (32, call.rotary // 2))
    positions = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]], np.int64)
    return [
        np.concatenate([query, key, value], axis=-1) if call.packed else query,
        None if call.packed else key,
        None if call.packed else value,
        *caches,
        np.array(call.totals, np.int32) - 1,
        np.array(total, np.int32),
        np.cos(angles).astype(dtype) if call.rotary else None,
        np.sin(angles).astype(dtype) if call.rotary else None,
        positions if call.positions else None,
        noise(batch, HEADS, length, total) if call.bias else None,
        2.0 * noise(HEADS) if call.sink else None,
        None,
        None,
        noise(size) if call.norm else None,
        noise(size) if call.norm else None,
    ]


def _rotate(heads: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Rotate `[sequence, heads, size]`; cos and sin are `[sequence, half]`."""
    half = cos.shape[-1]
    even = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    odd = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    cos, sin = cos[:, None], sin[:, None]
    result = heads.copy()
    result[..., even] = heads[..., even] * cos - heads[..., odd] * sin
    result[..., odd] = heads[..., odd] * cos + heads[..., even] * sin
    return result


def _attend(call: Call, inputs: list[Array | None]) -> list[Array]:
    """Row by row, head by head, in float64: the operator's documentation."""
    attributes, size = call.attributes, call.head_size
    wide = [None if value is None else value.astype(np.float64) for value in inputs]
    counts = (HEADS, KV_HEADS, KV_HEADS)
    if call.packed:
        assert wide[0] is not None
        parts = np.split(wide[0], np.cumsum(np.array(counts) * size)[:-1], axis=-1)
    else:
        parts = [value for value in wide[:3] if value is not None]
    batch, length = parts[0].shape[:2]
    query, key, value = (
        part.reshape(batch, length, heads, size) for part, heads in zip(parts, counts, strict=True)
    )
    total = call.past + length
    slots = max(total, call.capacity or call.past)
    caches = np.zeros((2, batch, KV_HEADS, slots, size))
    output = np.zeros((batch, length, HEADS * size))
    scale = attributes.get("scale", 1.0 / np.sqrt(size))
    for row, filled in enumerate(call.totals):
        first = max(filled - length, 0)
        positions = first + np.arange(length)
        q, k = query[row], key[row]
        if call.norm:
            epsilon = attributes["qk_norm_epsilon"]
            q = q / np.sqrt((q**2).mean(-1, keepdims=True) + epsilon) * wide[14]
            k = k / np.sqrt((k**2).mean(-1, keepdims=True) + epsilon) * wide[15]
        if call.rotary:
            assert wide[7] is not None
            assert wide[8] is not None
            places = inputs[9][row] if inputs[9] is not None else positions
            interleaved = bool(attributes.get("rotary_interleaved"))
            q, k = (_rotate(x, wide[7][places], wide[8][places], interleaved) for x in (q, k))
        for cache, past, new in zip(caches, wide[3:5], (k, value[row]), strict=True):
            if past is not None:
                cache[row, :, : past.shape[2]] = past[row]
            cache[row, :, first : first + length] = new.transpose(1, 0, 2)
        for head in range(HEADS):
            group = head // (HEADS // KV_HEADS)
            scores = scale * q[:, head] @ caches[0, row, group, :total].T
            if cap := attributes.get("softcap"):
                scores = cap * np.tanh(scores / cap)
            if wide[10] is not None:
                scores = scores + wide[10][row, head]
            slot = np.arange(total)
            seen = slot <= positions[:, None]
            if not attributes.get("causal", 1):
                seen = np.broadcast_to(slot < filled, seen.shape)
            if window := attributes.get("local_window_size"):
                seen = seen & (slot > positions[:, None] - window)
            weights = np.where(seen, np.exp(scores), 0.0)
            below = weights.sum(-1, keepdims=True)
            if wide[11] is not None:
                below = below + np.exp(wide[11][head])
            elif attributes.get("smooth_softmax"):
                below = below + 1.0
            output[row, :, head * size : (head + 1) * size] = (
                weights / below @ caches[1, row, group, :total]
            )
    return [output, *caches]


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize(
    ("opset", "dtype", "tolerance"),
    [(17, np.float32, 2e-6), (24, np.float32, 2e-6), (24, np.float16, 6e-3)],
)
def test_body_equals_kernel(
    run_body: Any, opset: int, call: Call, dtype: Any, tolerance: float
) -> None:
    """C033, C034: sinks, and windows that count the current token; caches at each row's length."""
    inputs = _inputs(call, dtype)
    expected = [array.astype(dtype) for array in _attend(call, inputs)]
    attributes = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, **call.attributes}
    if call.rotary:
        attributes["do_rotary"] = 1
    results = run_body(
        GROUP_QUERY_ATTENTION, opset, inputs, expected, kernel=call.kernel, **attributes
    )
    for who, found in results.items():
        assert [array.shape for array in found] == [array.shape for array in expected], who
        for row, filled in enumerate(call.totals):
            # Padded queries, and slots behind a row's tokens, hold anything.
            pairs = [(found[0][row], expected[0][row], slice(min(call.sequence, filled)))]
            pairs += [(found[i][row, 0], expected[i][row, 0], slice(filled)) for i in (1, 2)]
            for one, other, valid in pairs:
                np.testing.assert_allclose(
                    one[valid].astype(np.float64),
                    other[valid],
                    rtol=tolerance,
                    atol=tolerance,
                    err_msg=who,
                )


def _node(inputs: str, outputs: int = 3, **attributes: Any) -> ir.Node:
    values = [ir.val(name) if name != "-" else None for name in inputs.split()]
    attributes = {"num_heads": 4, "kv_num_heads": 2, **attributes}
    node = ir.node(
        "GroupQueryAttention",
        values,
        attributes,
        domain="com.microsoft",
        name="n",
        num_outputs=outputs,
    )
    for index, value in enumerate(node.outputs):
        value.name = f"out{index}"
    return node


@pytest.mark.parametrize(
    ("inputs", "attributes", "reason"),
    [
        ("q - v - - s t", {}, "has only one of key and value; both or none are needed."),
        ("q k v p - s t", {}, "has only one of past_key and past_value; both or none are needed."),
        ("q k v p p - t", {}, "lacks the input 'seqlens_k'; it is needed."),
        ("q k v p p s t", {"do_rotary": 1}, "has do_rotary=1 and no cos_cache; one is needed."),
        (
            "q k v p p s t",
            {"kv_num_heads": 3},
            "has 4 heads and 3 key/value heads; a multiple is needed.",
        ),
        (
            "q k v p p s t - - - - - x y",
            {},
            "has the input 'k_scale'; the body computes the operator without it.",
        ),
        (
            "q k v p p s t",
            {"k_quant_type": "PER_TENSOR"},
            "has k_quant_type='PER_TENSOR'; the body computes the operator with 'NONE' only.",
        ),
        (
            "q k v p p s t",
            {"sliding_window_cache": 1},
            "has sliding_window_cache=1; the body computes the operator with 0 only.",
        ),
        ("q" + " k" * 17, {}, "has 18 inputs; at most 17 are known."),
    ],
)
def test_refusals(inputs: str, attributes: dict[str, Any], reason: str) -> None:
    """What the body would not compute has no body."""
    with pytest.raises(RefusedError) as refused:
        GROUP_QUERY_ATTENTION_BODY.for_call(_node(inputs, **attributes), 24)
    assert refused.value.reason == f"com.microsoft::GroupQueryAttention (node 'n') {reason}"


def test_refuses_the_scores() -> None:
    """The fourth output is one that the body does not make."""
    node = _node("q k v p p s t", outputs=4)
    ir.Graph([], node.outputs, nodes=[node], opset_imports={"": 24})
    with pytest.raises(RefusedError) as refused:
        GROUP_QUERY_ATTENTION_BODY.for_call(node, 24)
    assert refused.value.reason == (
        "The output 'output_qk' of com.microsoft::GroupQueryAttention (node 'n') is used; the "
        "body does not compute it."
    )
