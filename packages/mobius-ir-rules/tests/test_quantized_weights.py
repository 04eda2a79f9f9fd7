"""Quantized weights: computed while they are read, a part at a time, from whatever they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from mobius_ir_rules import quantized_weights, visiting
from mobius_ir_rules.block_quantization import BlockFormat, dequantize_rows, quantize_rows
from mobius_ir_rules.expressions import (
    Cast,
    Concat,
    Leaf,
    Reshape,
    Slice,
    Transpose,
    UnloadedWeightError,
)
from mobius_ir_rules.lazy import DerivedTensor
from mobius_ir_rules.packed_integers import Centred, Nibbles
from mobius_ir_rules.quantized_weights import (
    BlockQuantizedStack,
    BlockQuantizedTensor,
    QuantizedWeight,
    computation_of,
    quantize_weight,
    visit_together,
)
from mobius_ir_rules.storage import bytes_of
from mobius_ir_rules.visiting import visit_numbers

Array = npt.NDArray[Any]
FORM = BlockFormat(4, 32, False)


class InParts(ir.Tensor):  # type: ignore[type-arg]
    """A tensor that hands out its data in parts of a length that fits nothing."""

    def __init__(self, array: Array, length: int) -> None:
        super().__init__(array)
        self._length = length
        self.longest = 0

    def visit(self, visit: Callable[[Array], object]) -> None:
        flat = self.numpy().reshape(-1)
        for start in range(0, flat.size, self._length):
            visit(flat[start : start + self._length])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        raise AssertionError("read as a whole")


def numbers(rows: int = 12, k: int = 80, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(rows).standard_normal((rows, k)).astype(dtype)


def leaf(tensor: ir.TensorProtocol | Array, name: str = "w") -> Leaf:
    tensor = ir.tensor(tensor) if isinstance(tensor, np.ndarray) else tensor
    shape = ir.Shape(tensor.shape.numpy())
    return Leaf(
        ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
    )


def check(weight: QuantizedWeight, rows: Array, form: BlockFormat = FORM) -> None:
    """Check all parts against the rows quantized as a whole."""
    wanted = quantize_rows(rows, form)
    for expression, array in (
        (weight.packed, wanted.packed),
        (weight.scales, wanted.scales),
        (weight.zero_points, wanted.zero_points),
    ):
        if array is None:
            assert expression is None
            continue
        assert expression is not None
        assert expression.shape == array.shape
        assert expression.dtype.numpy() == array.dtype
        np.testing.assert_array_equal(expression.materialize(), array)
        assert list(expression.leaves()) == list(dict.fromkeys(expression.leaves()))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("symmetric", [True, False])
def test_parts_of_a_weight(dtype: Any, symmetric: bool) -> None:
    form = BlockFormat(4, 32, symmetric)
    check(quantize_weight(leaf(numbers(dtype=dtype)), form), numbers(dtype=dtype), form)


@pytest.mark.parametrize("length", [1, 79, 80, 81, 161, 1000])
def test_a_weight_that_comes_in_parts_is_never_whole(length: int) -> None:
    source = leaf(InParts(numbers(), length))
    check(quantize_weight(source, FORM), numbers())
    # Neither is one that is made of several.
    joined = Concat((source, Reshape(leaf(InParts(numbers(5), 7), "v"), (5, 80))), 0)
    check(quantize_weight(joined, FORM), np.concatenate([numbers(), numbers(5)]))


def test_rows_are_handled_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visiting, "_CHUNK", 3 * 80)
    seen: list[int] = []
    weight = quantize_weight(leaf(InParts(numbers(), 400)), FORM)
    weight.packed.visit(lambda part: seen.append(part.size))  # type: ignore[attr-defined]
    assert max(seen) == 3 * 48  # three rows of three blocks of 16 bytes
    assert sum(seen) == 12 * 48


@pytest.mark.parametrize(
    ("make", "rows"),
    [
        (lambda: Transpose(leaf(numbers(80, 12)), (1, 0)), numbers(80, 12).T),
        (lambda: Slice(leaf(numbers()), (slice(2, 9), slice(0, 80))), numbers()[2:9]),
        (lambda: Reshape(leaf(numbers(6, 160)), (12, 80)), numbers(6, 160).reshape(12, 80)),
        (
            lambda: Cast(leaf(numbers(dtype=np.float16)), ir.DataType.FLOAT),
            numbers(dtype=np.float16).astype(np.float32),
        ),
        (
            lambda: Concat((leaf(numbers(12, 40)), leaf(numbers(12, 48), "v")), 1),
            np.concatenate([numbers(12, 40), numbers(12, 48)], axis=1),
        ),
    ],
    ids=["Transpose", "Slice", "Reshape", "Cast", "Concat of columns"],
)
def test_weights_of_every_expression(make: Any, rows: Array) -> None:
    check(quantize_weight(make(), FORM), np.ascontiguousarray(rows))


def test_a_weight_without_data_says_so() -> None:
    value = ir.Value(name="w", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2, 32]))
    with pytest.raises(UnloadedWeightError, match="'w'"):
        quantize_weight(Leaf(value), FORM).packed.materialize()


def test_data_that_are_not_what_they_should_be_are_refused() -> None:
    source = leaf(numbers())
    source.value.const_value = InParts(numbers(3), 7)
    with pytest.raises(ValueError, match=r"'w' is FLOAT\[12, 80\], but its data are"):
        quantize_weight(source, FORM).packed.materialize()
    broken = InParts(numbers(), 7)
    broken.visit = lambda visit: visit(np.zeros(85, np.float32))  # type: ignore[method-assign]
    source.value.const_value = broken
    with pytest.raises(ValueError, match="The last row has 5 of 80 elements"):
        quantize_weight(source, FORM).packed.materialize()
    broken.visit = lambda visit: visit(np.zeros(80, np.float32))  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="48 of 576 elements came from the source"):
        quantize_weight(source, FORM).packed.materialize()


@pytest.mark.parametrize("array", [np.zeros((2, 3, 4), np.float32), np.zeros((2, 32), np.float64)])
def test_other_tensors_are_no_weights(array: Array) -> None:
    with pytest.raises(ValueError, match="A matrix of FLOAT, FLOAT16, BFLOAT16 is needed, found"):
        quantize_weight(leaf(array), FORM)


def test_parts_that_are_read_together_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = quantize_weight(leaf(numbers()), FORM)
    assert weight.zero_points is not None
    parts = [weight.packed, weight.scales, weight.zero_points]
    assert len({computation_of(part) for part in parts}) == 1
    calls: list[int] = []

    def counted(rows: Array, form: BlockFormat) -> Any:
        calls.append(len(rows))
        return quantize_rows(rows, form)

    monkeypatch.setattr(quantized_weights, "quantize_rows", counted)
    found: dict[Any, list[Array]] = {part: [] for part in parts}
    visit_together({part: found[part].append for part in parts})
    assert sum(calls) == 12
    for part in parts:
        np.testing.assert_array_equal(np.concatenate(found[part]), part.materialize().reshape(-1))


def test_parts_of_two_weights_are_not_read_together() -> None:
    one, two = (quantize_weight(leaf(numbers(rows)), FORM).packed for rows in (12, 5))
    assert computation_of(one) is not computation_of(two)
    with pytest.raises(ValueError, match="not of one computation"):
        visit_together({one: print, two: print})
    assert computation_of(leaf(numbers())) is None


class TestQuantizedAlready:
    """A checkpoint's own integers are taken as they are."""

    def tensor(self, rows: int = 12, form: BlockFormat = FORM) -> BlockQuantizedTensor:
        random = np.random.default_rng(rows)
        packed = random.integers(0, 256, (rows, 3, form.block_bytes), np.uint8)
        scales = random.uniform(0.5, 1.5, (rows, 3)).astype(np.float16)
        zeros = None
        if not form.symmetric:
            zeros = leaf(random.integers(0, 256, (rows, form.zero_point_bytes(80)), np.uint8), "z")
        return BlockQuantizedTensor(
            QuantizedWeight(form, 80, leaf(packed, "p"), leaf(scales, "s"), zeros), "w"
        )

    def test_integers_and_scales_are_not_computed_anew(self) -> None:
        tensor = self.tensor()
        weight = quantize_weight(leaf(tensor), FORM)
        assert tensor.weight.zero_points is not None
        assert weight.zero_points is not None
        for found, wanted in (
            (weight.packed, tensor.weight.packed),
            (weight.scales, tensor.weight.scales),
            (weight.zero_points, tensor.weight.zero_points),
        ):
            np.testing.assert_array_equal(found.materialize(), wanted.array())

    def test_scales_are_cast(self) -> None:
        tensor = self.tensor().with_dtype(ir.DataType.FLOAT)
        scales = quantize_weight(leaf(tensor), FORM).scales
        assert scales.dtype == ir.DataType.FLOAT
        np.testing.assert_array_equal(
            scales.materialize(), self.tensor().weight.scales.array().astype(np.float32)
        )

    def test_each_part_of_a_packed_projection_may_be_of_either_kind(self) -> None:
        tensor = self.tensor().with_dtype(ir.DataType.FLOAT)
        weight = quantize_weight(Concat((leaf(tensor), leaf(numbers(5))), 0), FORM)
        np.testing.assert_array_equal(
            weight.packed.materialize(),
            np.concatenate([tensor.weight.packed.array(), quantize_rows(numbers(5), FORM).packed]),
        )

    def test_of_another_format_it_is_floats(self) -> None:
        tensor, form = self.tensor(), BlockFormat(8, 16, True)
        zeros = tensor.weight.zero_points
        assert zeros is not None
        floats = dequantize_rows(
            quantized_weights.QuantizedRows(
                tensor.weight.packed.array(), tensor.weight.scales.array(), zeros.array()
            ),
            FORM,
            80,
        )
        assert tensor.dtype == ir.DataType.FLOAT16
        np.testing.assert_array_equal(tensor.numpy(), floats)
        check(quantize_weight(leaf(tensor), form), floats, form)


class TestStorage:
    """What has the same bytes is found, so that it is stored once."""

    def test_shapes_and_whole_bytes_do_not_matter(self) -> None:
        packed = quantize_weight(leaf(numbers(12, 64)), FORM).packed
        assert bytes_of(packed) is packed
        assert bytes_of(Reshape(packed, (12, 32))) is packed
        assert bytes_of(Nibbles(Reshape(packed, (12, 32)), 12, 64)) is packed

    def test_padding_and_other_bits_do(self) -> None:
        packed = quantize_weight(leaf(numbers()), FORM).packed
        part = Nibbles(packed, 12, 80)
        assert bytes_of(part) is part
        centred = Centred(packed, 4)
        assert bytes_of(centred) is centred

    @pytest.mark.parametrize("bits", [4, 8])
    def test_centred_integers(self, bits: int) -> None:
        source = leaf(np.arange(256, dtype=np.uint8).reshape(2, 128))
        centred = Centred(source, bits)
        signed: Any = centred if bits == 8 else Nibbles(centred, 2, 256, ir.DataType.INT4)
        unsigned: Any = source if bits == 8 else Nibbles(source, 2, 256)
        np.testing.assert_array_equal(
            signed.materialize().astype(int), unsigned.array().astype(int) - 2 ** (bits - 1)
        )
        tensor = DerivedTensor(signed)
        assert tensor.tobytes() == (source.array() ^ (0x80 if bits == 8 else 0x88)).tobytes()


def test_numbers_of_any_expression_come_in_row_major_order() -> None:
    found: list[Array] = []
    visit_numbers(Transpose(leaf(numbers()), (1, 0)), found.append)
    np.testing.assert_array_equal(np.concatenate(found), numbers().T.reshape(-1))


def test_a_stack_of_weights_that_are_quantized_already() -> None:
    forms = [quantize_weight(leaf(numbers(12, 64) + np.float32(seed)), FORM) for seed in range(4)]
    parts = [BlockQuantizedTensor(form, f"e{index}") for index, form in enumerate(forms)]
    stack = BlockQuantizedStack(parts, 2, "experts")
    assert stack.shape == [2, 24, 64]
    floats = np.concatenate([part.numpy() for part in parts]).reshape(2, 24, 64)
    np.testing.assert_array_equal(stack.numpy(), floats)
    seen: list[Array] = []
    stack.visit(lambda part: seen.append(part.copy()))
    assert len(seen) == 4
    np.testing.assert_array_equal(np.concatenate(seen), floats.reshape(-1))
    half = stack.with_dtype(ir.DataType.FLOAT16)
    assert (half.dtype, half.shape) == (ir.DataType.FLOAT16, stack.shape)
    # The rows of the stack in this format are its integers; in another they are rounded anew.
    rows = Reshape(leaf(stack, "experts"), (48, 64))
    weight = quantize_weight(rows, FORM)
    wanted = np.concatenate([form.packed.materialize() for form in forms])
    np.testing.assert_array_equal(weight.packed.materialize(), wanted)
    other = BlockFormat(8, 32, False)
    check(quantize_weight(rows, other), floats.reshape(48, 64), other)
    with pytest.raises(ValueError, match="one format"):
        BlockQuantizedStack(
            [parts[0], BlockQuantizedTensor(quantize_weight(leaf(numbers(12, 64)), other))], 2
        )
