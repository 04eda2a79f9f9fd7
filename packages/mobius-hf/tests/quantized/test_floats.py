"""8-bit and 4-bit floats with scales: the very numbers, read some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from mobius.streaming import visit_chunks
from mobius_hf.errors import CheckpointError
from mobius_hf.quantized import decode_checkpoint

Array = npt.NDArray[Any]
Make = Callable[..., Any]

FP8 = {"quant_method": "fp8", "weight_block_size": [32, 16]}
MODELOPT = {"producer": {"name": "modelopt"}, "quant_algo": "FP8"}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
FLOAT_QUANTIZED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"weights": {"block_structure": [32, 16]}}},
}


def float8(n: int, k: int, dtype: Any = ml_dtypes.float8_e4m3fn) -> Array:
    """Return every finite number of the type, and others."""
    codes = np.random.default_rng(0).integers(0, 256, (n, k)).astype(np.uint8)
    codes.reshape(-1)[:256] = np.arange(256)
    numbers = codes.view(dtype)
    return np.where(np.isfinite(numbers.astype(np.float32)), numbers, dtype(0))


def decode(settings: Mapping[str, Any], tensors: Mapping[str, Any], name: str) -> Array:
    decoded = decode_checkpoint(settings, tensors, "here")
    assert set(decoded) == {name}
    tensor = decoded[name]
    assert tensor.dtype == ir.DataType.FLOAT
    parts: list[Array] = []
    visit_chunks(tensor, lambda part: parts.append(part.copy()))
    whole = np.asarray(tensor.numpy())
    np.testing.assert_array_equal(np.concatenate(parts), whole.reshape(-1))
    return whole


def scale_of(n: int, k: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(1).uniform(0.001, 0.1, (n, k)).astype(dtype)


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize(("n", "k"), [(64, 48), (70, 41)])
def test_blocks(tensors: Make, n: int, k: int, dtype: Any) -> None:
    weight, scale = float8(n, k, dtype), scale_of(-(-n // 32), -(-k // 16))
    expected = np.empty((n, k), np.float32)
    for row in range(n):
        for column in range(k):
            expected[row, column] = np.float32(weight[row, column]) * scale[row // 32, column // 16]
    arrays = {"weight": weight, "weight_scale_inv": scale}
    np.testing.assert_array_equal(decode(FP8, tensors(arrays), "m.weight"), expected)


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        (FP8, ()),
        (FP8, (1,)),
        (MODELOPT, ()),
        (FLOAT_QUANTIZED, (1,)),
        (FLOAT_QUANTIZED, (64, 1)),
        (FLOAT_QUANTIZED, (64,)),
        (FLOAT_QUANTIZED, (2, 3)),
    ],
)
def test_a_scale_for_all_or_for_each_row_or_block(
    tensors: Make, settings: Any, shape: tuple[int, ...]
) -> None:
    weight = float8(64, 48)
    scale = scale_of(64, 1)[: int(np.prod(shape[:1]))].reshape(shape[:1] + (1,) * (len(shape) - 1))
    if shape == (2, 3):
        scale = scale_of(2, 3)
    arrays = {
        "weight": weight,
        "weight_scale": scale,
        "input_scale": np.float32([1.0]),
        "k_scale": np.float32([1.0]),
    }
    factors = np.repeat(np.repeat(scale, 32, 0), 16, 1) if shape == (2, 3) else scale
    if len(shape) == 1 and shape[0] == 64:
        factors = factors[:, None]
    np.testing.assert_array_equal(
        decode(settings, tensors(arrays), "m.weight"), weight.astype(np.float32) * factors
    )


def test_scales_that_are_powers_of_two(tensors: Make) -> None:
    weight = float8(64, 48)
    exponents = np.random.default_rng(2).integers(110, 130, (2, 3)).astype(np.uint8)
    scale = np.exp2(exponents.astype(np.float32) - 127)
    arrays = {"weight": weight, "weight_scale_inv": exponents.view(ml_dtypes.float8_e8m0fnu)}
    np.testing.assert_array_equal(
        decode(FP8, tensors(arrays), "m.weight"),
        weight.astype(np.float32) * np.repeat(np.repeat(scale, 32, 0), 16, 1),
    )


def test_transformers_makes_the_same_of_blocks(tensors: Make) -> None:
    # As `transformers.integrations.finegrained_fp8` does it: in float32, block by block.
    weight, scale = float8(64, 48), scale_of(2, 3)
    torch.set_num_threads(1)
    numbers = torch.tensor(weight.view(np.uint8)).view(torch.float8_e4m3fn)
    blocks = numbers.to(torch.float32).reshape(2, 32, 3, 16)
    theirs = (blocks * torch.tensor(scale).reshape(2, 1, 3, 1)).reshape(64, 48)
    arrays = {"weight": weight, "weight_scale_inv": scale}
    np.testing.assert_array_equal(decode(FP8, tensors(arrays), "m.weight"), theirs.numpy())


@pytest.mark.parametrize(("experts", "out", "groups"), [(3, 8, 2), (1, 5, 1)])
def test_mxfp4_is_what_transformers_makes_of_it(experts: int, out: int, groups: int) -> None:
    # C071
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (experts, out, groups, 16)).astype(np.uint8)
    scales = random.integers(115, 132, (experts, out, groups)).astype(np.uint8)
    torch.set_num_threads(1)
    theirs = convert_moe_packed_tensors(
        torch.tensor(blocks), torch.tensor(scales), dtype=torch.float32
    )
    name = "model.layers.0.mlp.experts.gate_up_proj"
    found = decode(
        {"quant_method": "mxfp4"},
        {f"{name}_blocks": ir.tensor(blocks), f"{name}_scales": ir.tensor(scales)},
        name,
    )
    assert found.shape == (experts, groups * 32, out)
    np.testing.assert_array_equal(found, theirs.numpy())


def test_nvfp4(tensors: Make) -> None:
    random = np.random.default_rng(0)
    packed = random.integers(0, 256, (6, 24)).astype(np.uint8)
    scales = float8(16, 16)[:6, :3]
    overall = np.float32(0.0125)
    table = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
    expected = np.empty((6, 48), np.float32)
    for row in range(6):
        for column in range(48):
            octet = int(packed[row, column // 2])
            number = table[octet >> 4 if column % 2 else octet & 0xF]
            factor = np.float32(scales[row, column // 16]) * overall
            expected[row, column] = np.float32(number) * factor
    arrays = {
        "weight": packed,
        "weight_scale": scales,
        "weight_scale_2": overall,
        "input_scale": np.float32(1),
    }
    np.testing.assert_array_equal(decode(NVFP4, tensors(arrays), "m.weight"), expected)


@pytest.mark.parametrize(
    ("settings", "arrays", "message"),
    [
        (
            FP8,
            {"weight": float8(64, 48), "weight_scale_inv": scale_of(2, 2)},
            r"m has a scale of shape \[2, 2\] for a weight of shape \[64, 48\], and "
            r"weight_block_size is \[32, 16\]",
        ),
        (FP8, {"weight_scale_inv": scale_of(2, 3)}, "m has .weight_scale_inv and lacks .weight"),
        (
            FP8,
            {"weight": scale_of(64, 48), "weight_scale_inv": scale_of(2, 3)},
            r"m.weight is FLOAT\[64, 48\]; needed: FLOAT8E4M3FN or FLOAT8E5M2",
        ),
        (
            NVFP4,
            {
                "weight": np.zeros((6, 24), np.uint8),
                "weight_scale": float8(16, 16)[:6, :2],
                "weight_scale_2": np.float32(1),
            },
            "needed: a scale for each 8 bytes",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    tensors: Make, settings: Any, arrays: dict[str, Array], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        decode_checkpoint(settings, tensors(arrays), "here")


def test_mxfp4_of_another_shape() -> None:
    blocks, scales = np.zeros((2, 4, 1, 8), np.uint8), np.zeros((2, 4, 1), np.uint8)
    with pytest.raises(CheckpointError, match="needed: blocks of 16 bytes"):
        decode_checkpoint(
            {"quant_method": "mxfp4"},
            {"e_blocks": ir.tensor(blocks), "e_scales": ir.tensor(scales)},
            "here",
        )


def test_floats_are_computed_some_rows_at_a_time(
    tensors: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mobius_ir_rules.visiting._CHUNK", 100)
    arrays = {"weight": float8(64, 48), "weight_scale_inv": scale_of(2, 3)}
    tensor: Any = decode_checkpoint(FP8, tensors(arrays), "here")["m.weight"]
    sizes: list[int] = []
    tensor.visit(lambda part: sizes.append(part.size))
    assert max(sizes) == 96
    assert sum(sizes) == 64 * 48
