"""Transposed copies equal numpy's assignment, tile borders and conversions included."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mobius_ir_rules.tiled_copy import copy

SHAPES = [(16, 16), (128, 128), (129, 127), (1000, 300), (2047, 1025), (1024, 17), (15, 400)]
DTYPES = [
    (np.float32, np.float32),
    (np.float32, np.float16),
    (ml_dtypes.bfloat16, ml_dtypes.bfloat16),
    (ml_dtypes.bfloat16, np.float32),
]


@pytest.mark.parametrize(("source", "target"), DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_transposed_either_way(shape: tuple[int, int], source: type, target: type) -> None:
    values = np.random.default_rng(0).standard_normal(shape, np.float32).astype(source)
    expected = values.astype(target)
    across = np.ascontiguousarray(values.T).T  # the same matrix, columns together in memory
    # Inside a larger array, whose other elements must stay as they are.
    around = np.full((shape[0] + 3, shape[1] + 5), 7, target)
    copy(around[1 : 1 + shape[0], 2 : 2 + shape[1]], across)
    np.testing.assert_array_equal(around[1 : 1 + shape[0], 2 : 2 + shape[1]], expected)
    around[1 : 1 + shape[0], 2 : 2 + shape[1]] = 7
    assert (around == 7).all()
    columns = np.zeros((shape[1], shape[0]), target)
    copy(columns.T, values)
    np.testing.assert_array_equal(columns.T, expected)


def test_values_out_of_range_are_infinite_and_silent() -> None:
    values = np.full((200, 200), 1e6, np.float32)
    out = np.zeros((200, 200), np.float16)
    copy(out, values.T)
    assert np.isinf(out).all()
