"""What `compressed_tensors` writes reads back as what it makes of it; where it is installed."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import torch

from mobius_hf.quantized import decode_checkpoint
from mobius_ir_rules.quantized_weights import BlockQuantizedTensor

compressors = pytest.importorskip("compressed_tensors.compressors")
quantization = pytest.importorskip("compressed_tensors.quantization")

N, K = 48, 256
CASES = {
    "pack-quantized, groups": (
        "pack-quantized",
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64},
    ),
    "pack-quantized, groups with zero points": (
        "pack-quantized",
        {
            "num_bits": 4,
            "type": "int",
            "strategy": "group",
            "group_size": 64,
            "symmetric": False,
        },
    ),
    "pack-quantized, rows, 8 bits": (
        "pack-quantized",
        {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": False},
    ),
    "int-quantized, rows": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
    "float-quantized, rows": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "channel"},
    ),
    "float-quantized, blocks": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 64]},
    ),
}


def as_numpy(tensor: torch.Tensor) -> Any:
    """Return a tensor of torch with the types of ml_dtypes."""
    views = {
        torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
        torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    }
    if tensor.dtype not in views:
        return tensor.numpy()
    bits, dtype = views[tensor.dtype]
    return tensor.contiguous().view(bits).numpy().view(dtype)


@pytest.mark.parametrize(("form", "arguments"), CASES.values(), ids=CASES)
def test_round_trip(form: str, arguments: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    args = quantization.QuantizationArgs(**arguments)
    weight = torch.randn(N, K, dtype=torch.bfloat16)
    rows, columns = arguments.get("block_structure", (1, arguments.get("group_size", K)))
    blocks = weight.float().reshape(N // rows, rows, K // columns, columns)
    scale, zero = quantization.utils.calculate_qparams(
        blocks.amin((1, 3)), blocks.amax((1, 3)), args
    )
    scale = scale.to(torch.bfloat16)
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=args)
    compressor = compressors.BaseCompressor.get_value_from_registry(form)
    stored = compressor.compress(dict(state), scheme)
    theirs = as_numpy(compressor.decompress(dict(stored), scheme)["weight"])

    settings = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": arguments}},
    }
    tensors = {f"m.{name}": ir.tensor(as_numpy(tensor)) for name, tensor in stored.items()}
    tensor = decode_checkpoint(settings, tensors, "here")["m.weight"]
    assert isinstance(tensor, BlockQuantizedTensor) == (arguments["type"] == "int")
    assert theirs.dtype == ml_dtypes.bfloat16
    ours = tensor.numpy().astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(ours.view(np.uint16), theirs.view(np.uint16))
    assert np.abs(ours.astype(np.float32)).max() > 1
