"""The body of PackedMultiHeadAttention, and the mask that says the same of standard attention."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from mobius_ir_rules.functions.block_masks import BLOCK_DIAGONAL_MASK
from mobius_ir_rules.functions.packed_multi_head_attention import (
    PACKED_MULTI_HEAD_ATTENTION,
    PACKED_MULTI_HEAD_ATTENTION_BODY,
)
from mobius_ir_rules.rule import RefusedError

Array = npt.NDArray[Any]
HEADS, SIZE = 4, 16
LENGTHS = [(0, 1, 3, 8), (0, 5), (0, 2, 2, 5)]


def _attend(query: Array, key: Array, value: Array, bounds: tuple[int, ...], scale: float) -> Array:
    """Attention of each sequence alone, float64; everything is `[tokens, heads, size]`."""
    result = np.zeros(value.shape)
    for start, end in itertools.pairwise(bounds):
        q, k, v = (x[start:end].astype(np.float64) for x in (query, key, value))
        weights = np.exp(scale * np.einsum("qnd,knd->nqk", q, k))
        weights /= weights.sum(-1, keepdims=True)
        result[start:end] = np.einsum("nqk,knd->qnd", weights, v)
    return result.reshape(len(result), -1)


@pytest.mark.parametrize("opset", [17, 24])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float16, 6e-3)])
@pytest.mark.parametrize("bounds", LENGTHS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_body(
    run_body: Any,
    opset: int,
    dtype: Any,
    tolerance: float,
    bounds: tuple[int, ...],
    packed: bool,
    bias: bool,
) -> None:
    """C066: block-diagonal attention, of one sequence and several, an empty one included.

    ONNX Runtime's CPU provider has no kernel.
    """
    random = np.random.default_rng(0)
    tokens = bounds[-1]
    query, key, value = (
        random.standard_normal((tokens, HEADS, SIZE)).astype(dtype) for _ in range(3)
    )
    added = random.standard_normal((3, HEADS, SIZE)).astype(dtype) if bias else None
    sums = [x if added is None else x + added[i] for i, x in enumerate((query, key, value))]
    expected = _attend(*sums, bounds, 0.3).astype(dtype)
    flat = [x.reshape(tokens, -1) for x in (query, key, value)]
    inputs = [
        *([np.stack([query, key, value], axis=2), None, None] if packed else flat),
        None if added is None else added.reshape(-1),
        np.zeros((len(bounds) - 1, 5), np.int32),
        np.array(bounds, np.int32),
    ]
    results = run_body(
        PACKED_MULTI_HEAD_ATTENTION,
        opset,
        inputs,
        [expected],
        kernel=False,
        num_heads=HEADS,
        scale=0.3,
    )
    for who, (found,) in results.items():
        np.testing.assert_allclose(
            found.astype(np.float64), expected, rtol=tolerance, atol=tolerance, err_msg=who
        )


@pytest.mark.parametrize("opset", [17, 24])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("bounds", LENGTHS)
@pytest.mark.parametrize("shape", [(7,), (1, 7)])
def test_block_diagonal_mask(
    run_body: Any, opset: int, dtype: Any, bounds: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    """C103: true within each sequence only; from tokens with and without a batch axis."""
    tokens = bounds[-1]
    expected = np.zeros((tokens, tokens), bool)
    for start, end in itertools.pairwise(bounds):
        expected[start:end, start:end] = True
    hidden = np.zeros((*shape[:-1], tokens, shape[-1]), np.float32)
    results = run_body(
        BLOCK_DIAGONAL_MASK, opset, [np.array(bounds, dtype), hidden], [expected], kernel=False
    )
    for who, (found,) in results.items():
        np.testing.assert_array_equal(found, expected, err_msg=who)


@pytest.mark.parametrize(
    ("inputs", "heads", "reason"),
    [
        ("q - v - o c", 4, "has only one of key and value; both or none are needed."),
        ("q - - - - c", 4, "lacks the input 'token_offset'; it is needed."),
        ("q k v - o c", 0, "has num_heads=0; a positive number is needed."),
        (
            "q k v - o c b",
            4,
            "has the input 'attention_bias'; the body computes the operator without it.",
        ),
    ],
)
def test_refusals(inputs: str, heads: int, reason: str) -> None:
    """What the body would not compute has no body."""
    values = [ir.val(name) if name != "-" else None for name in inputs.split()]
    node = ir.node(
        "PackedMultiHeadAttention",
        values,
        {"num_heads": heads},
        domain="com.microsoft",
        name="n",
    )
    with pytest.raises(RefusedError) as refused:
        PACKED_MULTI_HEAD_ATTENTION_BODY.for_call(node, 24)
    assert refused.value.reason == f"com.microsoft::PackedMultiHeadAttention (node 'n') {reason}"
