"""GPTQ, AWQ and compressed-tensors: integers as they are, floats where they must, bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from mobius_hf.errors import CheckpointError
from mobius_hf.quantized import decode_checkpoint
from mobius_ir_rules.block_quantization import BlockFormat, unpack_integers
from mobius_ir_rules.quantized_weights import BlockQuantizedTensor

Array = npt.NDArray[Any]
Make = Callable[..., Any]


def gptq_arrays(weight: Any, words_of: Make, *, v2: bool = False) -> dict[str, Array]:
    zeros = words_of(weight.zeros.T, weight.bits)
    if not v2:
        ones = np.uint32(sum(1 << place for place in range(0, 32, weight.bits)))
        zeros = (zeros.view(np.uint32) - ones).view(np.int32)
    return {
        "qweight": np.ascontiguousarray(words_of(weight.integers, weight.bits).T),
        "qzeros": zeros,
        "scales": np.ascontiguousarray(weight.scales.T),
        "g_idx": weight.groups.astype(np.int32),
    }


def awq_arrays(weight: Any, words_of: Make) -> dict[str, Array]:
    def words(integers: Array) -> Array:  # [rows, N]
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        groups = integers.reshape(integers.shape[0], -1, 8)[..., order]
        return words_of(groups.reshape(integers.shape[0], -1), 4)

    return {
        "qweight": words(weight.integers.T),
        "qzeros": words(weight.zeros.T),
        "scales": np.ascontiguousarray(weight.scales.T),
    }


def packed_arrays(weight: Any, words_of: Make, *, symmetric: bool) -> dict[str, Array]:
    arrays = {
        "weight_packed": words_of(weight.integers, weight.bits),
        "weight_scale": weight.scales.astype(ml_dtypes.bfloat16),
        "weight_shape": np.array(weight.integers.shape, np.int64),
    }
    if not symmetric:
        zeros = words_of(np.ascontiguousarray(weight.zeros.T), weight.bits)
        arrays["weight_zero_point"] = np.ascontiguousarray(zeros.T)
    return arrays


def gptq(**more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, **more}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}


def compressed(form: str) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {}}


def decode(settings: Mapping[str, Any], tensors: Mapping[str, Any]) -> ir.TensorProtocol:
    decoded = decode_checkpoint(settings, tensors, "here")
    assert set(decoded) == {"m.weight"}  # nothing is left over
    tensor = decoded["m.weight"]
    assert tensor.name == "m.weight"
    return tensor


def check(tensor: ir.TensorProtocol, weight: Any, form: BlockFormat) -> None:
    """Check integers, scales and zero points of each block, and the floats that they stand for."""
    assert isinstance(tensor, BlockQuantizedTensor)
    parts = tensor.weight
    assert parts.form == form
    n, k = weight.integers.shape
    packed = parts.packed.array()
    integers = unpack_integers(packed, form.bits).reshape(n, -1)
    np.testing.assert_array_equal(integers[:, :k], weight.integers)
    assert not integers[:, k:].any()
    first = np.arange(0, k, form.block_size)  # of each block
    np.testing.assert_array_equal(parts.scales.array(), weight.scales[:, weight.groups[first]])
    if form.symmetric:
        assert parts.zero_points is None
    else:
        assert parts.zero_points is not None
        points = unpack_integers(parts.zero_points.array(), form.bits)[:, : len(first)]
        np.testing.assert_array_equal(points, weight.zeros[:, weight.groups[first]])
    # The library's own arithmetic is that of the scales' type.
    own = weight.floats.astype(parts.scales.dtype.numpy())
    np.testing.assert_array_equal(tensor.numpy(), own)
    as_float = tensor.with_dtype(ir.DataType.FLOAT)
    np.testing.assert_array_equal(as_float.numpy(), weight.floats)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("v2", [True, False])
@pytest.mark.parametrize(
    ("k", "group", "block"), [(96, 32, 32), (256, 128, 128), (256, -1, 128), (64, -1, 64)]
)
def test_gptq(
    quantized: Make,
    words_of: Make,
    tensors: Make,
    k: int,
    group: int,
    block: int,
    v2: bool,
    symmetric: bool,
    bits: int,
) -> None:
    weight = quantized(16, k, k if group == -1 else group, bits=bits, symmetric=symmetric)
    settings = gptq(
        bits=bits,
        group_size=group,
        sym=symmetric,
        **({"checkpoint_format": "gptq_v2"} if v2 else {}),
    )
    tensor = decode(settings, tensors(gptq_arrays(weight, words_of, v2=v2)))
    check(tensor, weight, BlockFormat(bits, block, symmetric))


def test_gptq_zero_points_of_zero_borrow_from_the_next(
    quantized: Make, words_of: Make, tensors: Make
) -> None:
    weight = quantized(16, 64, 32)
    weight.zeros[3] = 0
    weight.zeros[4] = 0
    check(decode(gptq(), tensors(gptq_arrays(weight, words_of))), weight, BlockFormat(4, 32, False))


def test_gptq_in_another_order_becomes_floats(
    quantized: Make, words_of: Make, tensors: Make
) -> None:
    # C062
    weight = quantized(16, 96, 32, mixed=True)
    tensor = decode(gptq(desc_act=True), tensors(gptq_arrays(weight, words_of)))
    assert not isinstance(tensor, BlockQuantizedTensor)
    assert tensor.dtype == ir.DataType.FLOAT
    np.testing.assert_array_equal(tensor.numpy(), weight.floats)


def test_gptq_whose_order_is_the_plain_one_keeps_its_integers(
    quantized: Make, words_of: Make, tensors: Make
) -> None:
    # C062
    weight = quantized(16, 96, 32)
    arrays = gptq_arrays(weight, words_of)
    form = BlockFormat(4, 32, False)
    check(decode(gptq(desc_act=True), tensors(arrays)), weight, form)
    del arrays["g_idx"]
    check(decode(gptq(), tensors(arrays)), weight, form)


def test_gptq_groups_that_are_no_blocks_become_floats(
    quantized: Make, words_of: Make, tensors: Make
) -> None:
    weight = quantized(16, 96, 24)
    tensor = decode(gptq(group_size=24), tensors(gptq_arrays(weight, words_of)))
    assert not isinstance(tensor, BlockQuantizedTensor)
    np.testing.assert_array_equal(tensor.numpy(), weight.floats)


def test_gptq_modules_may_have_bits_of_their_own(
    quantized: Make, words_of: Make, tensors: Make
) -> None:
    weight = quantized(16, 96, 32, bits=8)
    settings = gptq(dynamic={"+:m": {"bits": 8}})
    check(
        decode(settings, tensors(gptq_arrays(weight, words_of))), weight, BlockFormat(8, 32, False)
    )


@pytest.mark.parametrize(("k", "group", "block"), [(96, 32, 32), (256, 128, 128), (64, 64, 64)])
def test_awq(
    quantized: Make, words_of: Make, tensors: Make, k: int, group: int, block: int
) -> None:
    weight = quantized(16, k, group)
    settings = {**AWQ, "group_size": group}
    tensor = decode(settings, tensors(awq_arrays(weight, words_of)))
    check(tensor, weight, BlockFormat(4, block, False))


def test_awq_groups_that_are_no_blocks_become_floats(
    quantized: Make, words_of: Make, tensors: Make
) -> None:
    weight = quantized(16, 96, 24)
    tensor = decode({**AWQ, "group_size": 24}, tensors(awq_arrays(weight, words_of)))
    assert not isinstance(tensor, BlockQuantizedTensor)
    np.testing.assert_array_equal(tensor.numpy(), weight.floats)


def rounded_scales(weight: Any) -> Any:
    """Return the weight with scales that bfloat16 has."""
    return dataclasses.replace(
        weight, scales=weight.scales.astype(ml_dtypes.bfloat16).astype(np.float32)
    )


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("n", "k", "group", "block"),
    [(16, 96, 32, 32), (13, 256, 128, 128), (16, 256, 256, 128), (5, 20, 20, 32)],
)
def test_packed_integers(
    quantized: Make,
    words_of: Make,
    tensors: Make,
    n: int,
    k: int,
    group: int,
    block: int,
    symmetric: bool,
    bits: int,
) -> None:
    """Groups, whole rows, rows whose last word is not full."""
    weight = rounded_scales(quantized(n, k, group, bits=bits, symmetric=symmetric))
    arrays = packed_arrays(weight, words_of, symmetric=symmetric)
    tensor = decode(compressed("pack-quantized"), tensors(arrays))
    check(tensor, weight, BlockFormat(bits, block, symmetric))


def test_packed_integers_in_another_order(quantized: Make, words_of: Make, tensors: Make) -> None:
    weight = rounded_scales(quantized(16, 96, 32, mixed=True))
    arrays = packed_arrays(weight, words_of, symmetric=False)
    arrays["weight_g_idx"] = weight.groups.astype(np.int32)
    tensor = decode(compressed("pack-quantized"), tensors(arrays))
    assert not isinstance(tensor, BlockQuantizedTensor)
    np.testing.assert_array_equal(tensor.numpy(), weight.floats)
    # None of the columns has a group of its own.
    plain = rounded_scales(quantized(16, 96, 32))
    arrays = packed_arrays(plain, words_of, symmetric=False)
    arrays["weight_g_idx"] = np.full(96, -1, np.int32)
    check(decode(compressed("pack-quantized"), tensors(arrays)), plain, BlockFormat(4, 32, False))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("shape", ["rows", "groups", "one"])
def test_plain_integers(quantized: Make, tensors: Make, shape: str, symmetric: bool) -> None:
    group = 32 if shape == "groups" else 96
    weight = rounded_scales(quantized(16, 96, group, bits=8, symmetric=symmetric))
    if shape == "one":
        weight.scales[:] = weight.scales[0, 0]
        weight.zeros[:] = weight.zeros[0, 0]
    arrays = {
        "weight": (weight.integers - 128).astype(np.int8),
        "weight_scale": weight.scales[:1] if shape == "one" else weight.scales,
        "input_scale": np.ones(1, np.float32),  # of activations, which stay floats
    }
    if not symmetric:
        arrays["weight_zero_point"] = (weight.zeros - 128).astype(np.int8)
    tensor = decode(compressed("int-quantized"), tensors(arrays))
    check(tensor, weight, BlockFormat(8, 32 if shape == "groups" else 128, symmetric))


WRONG: dict[str, tuple[Any, Any, str]] = {
    "part missing": (gptq(), lambda a: a.pop("scales"), "m has .g_idx, .qweight, .qzeros and"),
    "another type": (
        gptq(),
        lambda a: a.update(qweight=a["qweight"].astype(np.int64)),
        r"m.qweight is INT64\[12, 16\]; needed: INT32 with 2 axes",
    ),
    "other bits": (
        gptq(bits=3),
        lambda a: a.pop("g_idx"),
        r"m has integers of 3 bits; needed: one of \(4, 8\)",
    ),
    "another group size": (
        gptq(group_size=64),
        lambda a: None,
        "m has 3 groups in rows of 96, and group_size is 64",
    ),
    "another layout": (
        gptq(checkpoint_format="marlin"),
        lambda a: None,
        "m is stored in the checkpoint_format 'marlin'; needed: one of 'gptq', 'gptq_v2'",
    ),
    "an order of another length": (
        gptq(bits=4),
        lambda a: a.update(g_idx=np.full(96, 3, np.int32)),
        "m.g_idx has 96 entries from 3 to 3; needed: one of 3 groups",
    ),
    "an order that is missing": (
        gptq(desc_act=True),
        lambda a: a.pop("g_idx"),
        "lacks .g_idx",
    ),
    "AWQ of another version": ({**AWQ, "version": "gemv"}, lambda a: None, "in the layout 'gemv'"),
}


@pytest.mark.parametrize(("settings", "spoil", "message"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_refused_with_its_name(
    quantized: Make, words_of: Make, tensors: Make, settings: Any, spoil: Any, message: str
) -> None:
    arrays = gptq_arrays(quantized(16, 96, 32), words_of)
    spoil(arrays)
    with pytest.raises(CheckpointError, match=message):
        decode_checkpoint(settings, tensors(arrays), "here")


def test_symmetry_is_checked_when_the_weight_is_read(
    quantized: Make, words_of: Make, tensors: Make
) -> None:
    arrays = gptq_arrays(quantized(16, 96, 32), words_of)
    tensor = decode(gptq(sym=True), tensors(arrays))
    assert isinstance(tensor, BlockQuantizedTensor)
    with pytest.raises(CheckpointError, match="m has zero points other than 8"):
        tensor.weight.packed.array()
