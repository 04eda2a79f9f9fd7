"""The body of com.microsoft's RotaryEmbedding is ONNX Runtime's kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mobius_ir_rules.functions.rotary_embedding import ROTARY_EMBEDDING

Array = npt.NDArray[Any]
BATCH, SEQUENCE, HEADS, HEAD_SIZE = 2, 3, 4, 16


def _rotate(heads: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Rotate `[batch, sequence, heads, head_size]`; cos and sin are `[batch, sequence, half]`."""
    half = cos.shape[-1]
    even = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    odd = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    cos, sin = cos[:, :, None], sin[:, :, None]
    result = heads.copy()
    result[..., even] = heads[..., even] * cos - heads[..., odd] * sin
    result[..., odd] = heads[..., odd] * cos + heads[..., even] * sin
    return result


@pytest.mark.parametrize("opset", [17, 24])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float16, 4e-3)])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("width", [HEAD_SIZE, 8])
@pytest.mark.parametrize("first", [None, 5])
def test_body_equals_kernel(
    run_body: Any,
    opset: int,
    dtype: type,
    tolerance: float,
    rank: int,
    interleaved: int,
    width: int,
    first: int | None,
) -> None:
    """Both layouts, both pairings, whole and partial width, both kinds of position_ids."""
    random = np.random.default_rng(0)
    heads = random.standard_normal((BATCH, SEQUENCE, HEADS, HEAD_SIZE)).astype(dtype)
    angles = random.uniform(0.0, 6.0, (12, width // 2))
    cos, sin = np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)
    if first is None:
        position_ids = np.array([[0, 1, 2], [4, 7, 11]], np.int64)
        positions = position_ids
    else:
        position_ids = np.array([first], np.int64)
        positions = np.broadcast_to(first + np.arange(SEQUENCE), (BATCH, SEQUENCE))
    wide = _rotate(
        heads.astype(np.float64),
        cos[positions].astype(np.float64),
        sin[positions].astype(np.float64),
        bool(interleaved),
    )

    def layout(value: Array) -> Array:
        if rank == 4:
            return np.ascontiguousarray(np.swapaxes(value, 1, 2))
        return value.reshape(BATCH, SEQUENCE, HEADS * HEAD_SIZE)

    expected = layout(wide).astype(dtype)
    attributes = {"interleaved": interleaved}
    if width != HEAD_SIZE:
        attributes |= {"num_heads": HEADS, "rotary_embedding_dim": width}
    results = run_body(
        ROTARY_EMBEDDING,
        opset,
        [layout(heads), position_ids, cos, sin],
        [expected],
        **attributes,
    )
    for who, (found,) in results.items():
        np.testing.assert_allclose(
            found.astype(np.float64), expected, rtol=tolerance, atol=tolerance, err_msg=who
        )


@pytest.mark.parametrize("num_heads", [0, HEADS])
def test_num_heads_of_a_whole_width(run_body: Any, num_heads: int) -> None:
    """Without num_heads, a head is as wide as both halves of the caches."""
    random = np.random.default_rng(0)
    heads = random.standard_normal((BATCH, SEQUENCE, HEADS, HEAD_SIZE)).astype(np.float32)
    angles = random.uniform(0.0, 6.0, (12, HEAD_SIZE // 2)).astype(np.float32)
    cos, sin = np.cos(angles), np.sin(angles)
    position_ids = np.array([[0, 1, 2], [4, 7, 11]], np.int64)
    flat = (BATCH, SEQUENCE, HEADS * HEAD_SIZE)
    expected = _rotate(heads, cos[position_ids], sin[position_ids], False).reshape(flat)
    results = run_body(
        ROTARY_EMBEDDING,
        24,
        [heads.reshape(flat), position_ids, cos, sin],
        [expected],
        num_heads=num_heads,
    )
    for who, (found,) in results.items():
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=who)
