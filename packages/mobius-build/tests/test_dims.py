"""Dimensions of inputs get one size each, the same in both models."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from mobius.dims import Sizes, bind, fitted, part_of
from mobius.errors import VerifyError
from mobius.ort import Port

Dims = tuple[int | str | None, ...]
SIZES = Sizes(batch=2, sequence=7, past=5)


def port(name: str, *shape: int | str | None) -> Port:
    return Port(name, ir.DataType.FLOAT, shape)


DECODER = [
    port("input_ids", "batch", "sequence_length"),
    port("attention_mask", "batch", "total_sequence_length"),
    port("position_ids", "batch", "sequence_length"),
    port("past_key_values.0.key", "batch", 4, "past_sequence_length", 16),
]


def test_a_decoder_has_a_total_of_past_and_sequence() -> None:
    assert bind([DECODER], SIZES) == {
        "input_ids": (2, 7),
        "attention_mask": (2, 12),
        "position_ids": (2, 7),
        "past_key_values.0.key": (2, 4, 5, 16),
    }


def test_names_of_dimensions_do_not_matter_where_inputs_have_a_part() -> None:
    dynamo = [
        port("input_ids", "s0", "s1"),
        port("attention_mask", "s0", "s1 + s2"),
        port("past_key_values.0.key", "s0", 4, "s2", 16),
    ]
    shapes = bind([dynamo], SIZES)
    assert shapes["attention_mask"] == (2, 12)
    assert shapes["past_key_values.0.key"] == (2, 4, 5, 16)
    assert bind([DECODER, dynamo], SIZES)["attention_mask"] == (2, 12)


def test_without_a_cache_the_mask_is_as_long_as_the_sequence() -> None:
    encoder = [port("input_ids", "b", "s"), port("attention_mask", "b", "s")]
    assert bind([encoder], Sizes(2, 7))["attention_mask"] == (2, 7)


def test_one_name_is_one_size_and_unknown_ones_are_small() -> None:
    shapes = bind([[port("x", "n", 3, "m"), port("y", "m", None)]], SIZES)
    assert shapes["x"][1] == 3
    assert shapes["x"][2] == shapes["y"][0]


def test_a_size_that_one_model_fixes_holds_for_both() -> None:
    loose, fixed = [port("x", "n", "m"), port("y", "n")], [port("x", 3, "m")]
    assert bind([loose, fixed], SIZES) == {"x": (3, 4), "y": (3,)}
    assert bind([fixed, loose], SIZES) == {"x": (3, 4), "y": (3,)}


def test_the_users_sizes_come_first() -> None:
    sizes = Sizes(2, 7, 5, {"sequence_length": 9, "batch": 1})
    shapes = bind([DECODER], sizes)
    assert shapes["position_ids"] == (1, 9)
    assert fitted([DECODER], sizes).sequence == 9


def test_fitted_takes_what_the_models_fix() -> None:
    static = [port("input_ids", 1, 16), port("past_key_values.0.key", 1, 4, 32, 16)]
    assert fitted([static], SIZES) == Sizes(1, 16, 32)


@pytest.mark.parametrize(
    ("models", "dims", "message"),
    [
        ([[port("x", 3)], [port("x", 4)]], {}, "dimension 0 of 'x' is 4, and dimension 0 of 'x'"),
        ([[port("x", "n"), port("y", "n")], [port("x", 3), port("y", 4)]], {}, "is 4.*is 3"),
        ([[port("x", "n")], [port("x", 3)]], {"n": 5}, "is 3.*is 5|is 5.*is 3"),
        ([[port("x", "n", 2)], [port("x", "n")]], {}, "2 dimensions in one model and 1"),
        ([[port("x", "n")]], {"m": 5}, "No input has a dimension called 'm'. There are: n."),
        ([[port("x", 3)]], {"m": 5}, "There are: none that is not fixed"),
    ],
)
def test_what_fits_no_size(models: list[list[Port]], dims: dict[str, int], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        bind(models, Sizes(2, 7, 5, dims))


@pytest.mark.parametrize(
    ("name", "shape", "axis", "part"),
    [
        ("logits", ("batch_size", "Sequence Length", 64), 1, "sequence"),
        ("present.0.key", ("batch", 2, "total_sequence_length", 16), 2, "total"),
        ("x", ("past_sequence_length + sequence_length",), 0, "total"),
        ("x", ("n",), 0, None),
        ("x", (3,), 0, None),
        ("position_ids", (3, "b", "s"), 2, "sequence"),
    ],
)
def test_part_of(name: str, shape: Dims, axis: int, part: str | None) -> None:
    assert part_of(port(name, *shape), axis) == part
