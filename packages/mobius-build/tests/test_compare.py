"""How far two arrays are apart, and when that is too far."""

from __future__ import annotations

import json
import math

import ml_dtypes
import numpy as np
import pytest

from mobius.compare import Tolerance, compare

TIGHT = Tolerance(1e-4, 1e-4)
NAN, INF = math.nan, math.inf


def array(*values: float, dtype: type = np.float32) -> np.ndarray:
    return np.array(values, dtype)


def test_the_largest_difference_and_where_it_is() -> None:
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    b = a.copy()
    b[1, 2] += 0.5
    b[2, 0] -= 0.25
    found = compare(a, b, TIGHT)
    assert (found.max_abs, found.at, found.values) == (0.5, (1, 2), (6.0, 6.5))
    assert found.max_rel == 0.5 / 11
    assert (found.beyond, found.compared) == (2, 12)
    assert found.problem == "2 of 12 numbers differ by more than 0.0001 + 0.0001 |A|."


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (0.0, 0.9e-4, True),
        (0.0, 1.1e-4, False),
        (100.0, 100.01, True),
        (100.0, 100.02, False),
        (INF, INF, True),
        (-INF, INF, False),
        (INF, 1.0, False),
        (1.0, NAN, False),
        (NAN, 1.0, False),
    ],
)
def test_what_is_too_far(a: float, b: float, same: bool) -> None:
    found = compare(array(a, 1.0), array(b, 1.0), TIGHT)
    assert (found.problem is None) is same
    assert found.beyond == (not same)


def test_nan_in_one_is_said_with_its_place() -> None:
    found = compare(array(1, 2, 3), array(1, NAN, 3), TIGHT)
    assert found.problem == (
        "1 of 3 numbers are NaN or infinite in one of the two only, the first at [1]."
    )
    assert found.not_a_number == (0, 1)
    assert found.max_abs == 0.0


def test_nan_in_both_proves_nothing_unless_allowed() -> None:
    a = array(1, NAN)
    assert compare(a, a, TIGHT).problem == "1 of 2 numbers are NaN in both."
    assert compare(a, a, TIGHT, allow_nan=True).problem is None
    none = array(NAN, NAN)
    assert compare(none, none, TIGHT).max_abs is None


def test_only_what_is_real_counts() -> None:
    a, b = np.zeros((2, 3, 2), np.float32), np.zeros((2, 3, 2), np.float32)
    b[1, 2] = NAN
    b[1, 1, 0] = 0.5
    real = np.array([[1, 1, 1], [1, 1, 0]], bool)[:, :, None]
    found = compare(a, b, TIGHT, real=real)
    assert (found.compared, found.beyond, found.at) == (10, 1, (1, 1, 0))
    real[1, 1] = False
    assert compare(a, b, TIGHT, real=real).problem is None


def test_other_shapes_and_dtypes() -> None:
    a = array(1, 2)
    assert compare(a, array(1, 2, 3), TIGHT).problem == "The shapes are [2] and [3]."
    half = a.astype(np.float16)
    assert compare(a, half, TIGHT).problem == "The dtypes are float32 and float16."
    assert compare(a, half, TIGHT, other_dtype=True).problem is None
    whole = a.astype(np.int64)
    found = compare(a, whole, TIGHT, other_dtype=True)
    assert found.problem == "The dtypes are float32 and int64."


def test_bfloat16() -> None:
    a = array(1, 2, dtype=ml_dtypes.bfloat16)
    b = array(1, 2.5, dtype=ml_dtypes.bfloat16)
    assert compare(a, b, TIGHT).max_abs == 0.5


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_])
def test_integers_must_be_equal(dtype: type) -> None:
    a, b = array(0, 1, 1, dtype=dtype), array(0, 0, 1, dtype=dtype)
    found = compare(a, b, Tolerance(10, 10))
    assert found.problem == "1 of 3 numbers are not equal."
    assert found.max_abs == 1.0
    assert compare(a, a, TIGHT).problem is None


def test_strings_must_be_equal() -> None:
    a, b = np.array(["x", "y"], object), np.array(["x", "z"], object)
    assert compare(a, b, TIGHT).problem == "The values are not equal."
    assert compare(a, a, TIGHT).problem is None


def test_empty_arrays_are_the_same() -> None:
    empty = np.zeros((2, 0), np.float32)
    found = compare(empty, empty, TIGHT)
    assert (found.problem, found.max_abs, found.compared) == (None, None, 0)


def test_a_difference_from_zero_is_infinitely_large_in_relation() -> None:
    found = compare(array(0, 0), array(0, 1), TIGHT)
    assert found.max_rel == INF
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["max_rel"] == "inf"
