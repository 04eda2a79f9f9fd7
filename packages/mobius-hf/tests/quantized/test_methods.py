"""Which methods are read, what is said of others, and what a config alone promises."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from mobius_hf.errors import CheckpointError
from mobius_hf.quantized import decode_checkpoint, expected_quantization
from mobius_hf.quantized.methods import METHODS, find_method, method_name
from mobius_ir_rules.block_quantization import BlockFormat
from mobius_ir_rules.passes.weight_uses import UseKind, WeightUse


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "modelopt W4A8_AWQ"),
        ({"quant_method": "auto-round", "packing_format": "x"}, "auto-round x"),
        ({}, "None"),
    ],
)
def test_other_methods_are_refused_by_name(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        find_method(settings, "here")
    message = str(caught.value)
    assert message.startswith(f"here has weights quantized by {name!r} (quantization_config)")
    assert "Read are: gptq, awq, compressed-tensors, fp8, mxfp4" in message


def test_other_formats_are_refused_by_name() -> None:
    settings = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}
    with pytest.raises(CheckpointError, match="compressed-tensors format 'mxfp4-pack-quantized'"):
        find_method(settings, "here")
    with pytest.raises(CheckpointError, match="quantization_config is 'gptq'; needed"):
        find_method("gptq", "here")


@pytest.mark.parametrize(
    "settings",
    [
        {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"},
        {"producer": {"name": "modelopt", "version": "0.31.0"}, "quant_algo": "FP8"},
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    ],
)
def test_methods_that_another_field_refines(settings: dict[str, Any]) -> None:
    assert find_method(settings, "here") is METHODS[method_name(settings)]


def test_tensors_of_other_modules_stay_as_they_are() -> None:
    norm = ir.tensor(np.ones(4, np.float32))
    table = ir.tensor(np.ones((4, 4), np.float32))
    others = {"norm.weight": norm, "embed.weight": table, "m.bias": norm}
    scaled = {"m.weight": table.numpy().astype(ml_dtypes.float8_e4m3fn), "m.weight_scale": norm}
    tensors = {**others, "m.weight": ir.tensor(scaled["m.weight"]), "m.weight_scale": norm}
    decoded = decode_checkpoint({"quant_method": "fp8"}, tensors, "here")
    assert decoded.keys() == {*others, "m.weight"}
    assert all(decoded[name] is tensor for name, tensor in others.items())


def test_a_checkpoint_of_floats_that_says_it_is_quantized() -> None:
    tensors = {"m.weight": ir.tensor(np.ones((4, 4), np.float32))}
    with pytest.raises(
        CheckpointError, match=r"holds no tensor that ends in \.weight_scale_inv or"
    ):
        decode_checkpoint({"quant_method": "fp8"}, tensors, "here")


def use(name: str = "model.layers.0.mlp.up_proj.weight", kind: UseKind = UseKind.PRODUCT) -> Any:
    return WeightUse((name,), kind, 64, 256)


def expected(settings: dict[str, Any]) -> Any:
    return expected_quantization({"quantization_config": settings})


def compressed(weights: dict[str, Any], form: str = "pack-quantized", **more: Any) -> Any:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": groups,
        **more,
    }


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}


@pytest.mark.parametrize(
    ("settings", "form"),
    [
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True},
            BlockFormat(4, 128, True),
        ),
        (
            {"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": False},
            BlockFormat(8, 128, False),
        ),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 64, "modules_to_not_convert": None},
            BlockFormat(4, 64, False),
        ),
        (compressed(INT4), BlockFormat(4, 32, True)),
        (
            compressed({"num_bits": 8, "type": "int", "strategy": "channel"}, "int-quantized"),
            BlockFormat(8, 128, True),
        ),
    ],
)
def test_what_a_config_promises(settings: dict[str, Any], form: BlockFormat) -> None:
    promised = expected(settings)
    assert promised.choose(use()) == form
    for kind in (UseKind.HEAD, UseKind.TABLE, UseKind.ROUTER):
        assert promised.choose(use(kind=kind)) is None
    assert json.loads(json.dumps(promised.to_dict()))["expected"]["bits"] == form.bits


@pytest.mark.parametrize(
    "settings",
    [
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True},
        {"quant_method": "gptq", "bits": 3, "group_size": 128},
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        {"quant_method": "mxfp4"},
        {"quant_method": "nobody"},
        compressed({**INT4, "actorder": "group"}),
        compressed({**INT4, "type": "float"}),
        {"quant_method": "compressed-tensors", "config_groups": {}},
    ],
)
def test_what_becomes_floats_is_not_promised(settings: dict[str, Any]) -> None:
    assert expected(settings) is None


def test_no_quantization() -> None:
    assert expected_quantization({}) is None
    assert expected_quantization({"quantization_config": None}) is None


@pytest.mark.parametrize(
    ("pattern", "left_out"),
    [
        ("model.layers.0.mlp.up_proj", True),
        ("up_proj", True),
        ("model.layers.*.mlp.up_proj", True),
        ("re:.*mlp.*", True),
        ("re:mlp", False),
        ("lm_head", False),
        ("model.layers.1", False),
    ],
)
def test_modules_that_are_left_out(pattern: str, left_out: bool) -> None:
    promised = expected(compressed(INT4, ignore=[pattern]))
    assert (promised.choose(use()) is None) == left_out


def test_groups_that_are_no_blocks_are_not_promised() -> None:
    assert expected({"quant_method": "gptq", "bits": 4, "group_size": 24}).choose(use()) is None
