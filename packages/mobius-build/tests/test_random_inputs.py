"""Random inputs that models accept: masks, positions, indices, and the same for both models."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from mobius.dims import Sizes
from mobius.errors import VerifyError
from mobius.ort import Port
from mobius.random_inputs import Scenario, coarsest, index_limits, random_inputs

INT64, FLOAT, FLOAT16 = ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.FLOAT16


def inputs(
    *ports: Port, padded: bool = False, past: int = 0, seed: int = 0, **limits: int
) -> dict[str, np.ndarray]:
    scenario = Scenario("test", Sizes(3, 4, past), padded)
    return random_inputs([ports], scenario, limits, np.random.default_rng(seed))


MASK = Port("attention_mask", INT64, ("b", "t"))
POSITIONS = Port("position_ids", INT64, ("b", "s"))


def test_padding_is_at_the_end_of_a_row_and_positions_stop_there() -> None:
    values = inputs(MASK, POSITIONS, padded=True)
    assert values["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]]
    assert values["position_ids"].tolist() == [[0, 1, 2, 3], [0, 1, 2, 2], [0, 1, 1, 1]]


def test_positions_go_on_after_the_past() -> None:
    values = inputs(MASK, POSITIONS, Port("cache_position", INT64, ("s",)), past=2)
    assert values["attention_mask"].shape == (3, 6)
    assert values["attention_mask"].all()
    assert values["position_ids"].tolist() == [[2, 3, 4, 5]] * 3
    assert values["cache_position"].tolist() == [2, 3, 4, 5]


def test_positions_of_three_kinds() -> None:
    values = inputs(Port("position_ids", INT64, (3, "b", "s")))
    assert values["position_ids"].shape == (3, 3, 4)


def test_a_mask_of_floats_is_a_bias() -> None:
    port = Port("attention_mask", FLOAT16, ("b", 1, "s", "t"))
    bias = inputs(port, padded=True)["attention_mask"]
    lowest = float(np.finfo(np.float16).min)
    assert bias.dtype == np.float16
    assert bias[1, 0, 3].tolist() == [0, 0, 0, lowest]
    assert bias[0, 0, 0].tolist() == [0, lowest, lowest, lowest]


def test_indices_stay_below_what_they_index() -> None:
    ids = Port("input_ids", INT64, ("b", "s"))
    assert inputs(ids, input_ids=50)["input_ids"].max() > 2
    assert inputs(ids, input_ids=50)["input_ids"].max() < 50
    assert set(np.unique(inputs(ids)["input_ids"])) == {0, 1}


def test_every_type_is_its_own() -> None:
    types = [FLOAT, FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE, INT64, ir.DataType.BOOL]
    ports = [Port(f"x{index}", dtype, (99,)) for index, dtype in enumerate(types)]
    values = inputs(*ports)
    for index, dtype in enumerate(types):
        assert values[f"x{index}"].dtype == dtype.numpy()
        assert len(np.unique(values[f"x{index}"].astype(np.float64))) > 1


def test_the_same_seed_gives_the_same_in_any_order() -> None:
    a, b = Port("a", FLOAT, (9,)), Port("b", FLOAT, (9,))
    first, second = inputs(a, b), inputs(b, a)
    assert all(np.array_equal(first[name], second[name]) for name in "ab")
    assert not np.array_equal(first["a"], inputs(a, b, seed=1)["a"])


def test_two_float_types_get_values_that_both_hold() -> None:
    ports = [[Port("x", FLOAT, (9,))], [Port("x", ir.DataType.BFLOAT16, (9,))]]
    scenario = Scenario("test", Sizes(1, 1))
    values = random_inputs(ports, scenario, {}, np.random.default_rng(0))
    assert values["x"].dtype == ml_dtypes.bfloat16


def test_no_value_is_both_an_integer_and_a_float() -> None:
    ports = [[Port("x", FLOAT, (9,))], [Port("x", INT64, (9,))]]
    with pytest.raises(VerifyError, match="FLOAT in one model and INT64 in the other"):
        random_inputs(ports, Scenario("test", Sizes(1, 1)), {}, np.random.default_rng(0))


def test_no_random_strings() -> None:
    with pytest.raises(VerifyError, match="'x' is STRING"):
        inputs(Port("x", ir.DataType.STRING, (2,)))


def test_coarsest() -> None:
    assert coarsest([FLOAT, ir.DataType.BFLOAT16, FLOAT16]) is ir.DataType.BFLOAT16
    assert coarsest([FLOAT, ir.DataType.DOUBLE]) is FLOAT


def test_index_limits_follow_casts_to_the_table() -> None:
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 24]>
    g (int32[n] ids, int64[n] kinds, int64[n] plain, float[7, 3] words, float[2, 5] table)
      => (float[n, 3] a, float[m, n] b, float[n, 3] c, int64[n] d) {
      long = Cast <to = 7> (ids)
      a = Gather(words, long)
      b = Gather <axis = 1> (table, kinds)
      c = Gather(words, kinds)
      d = Neg(plain)
    }""")
    assert index_limits(model) == {"ids": 7, "kinds": 5}
