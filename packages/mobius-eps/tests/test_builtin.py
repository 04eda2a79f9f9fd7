"""The eight built-in execution providers have the values of the specification."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir
import pytest

from mobius_eps import EpCapabilities, ep_registry
from mobius_eps.builtin import BUILTIN_EPS

F32, F16, BF16 = ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16

# What differs from the defaults of the dataclass, in full.
EXPECTED: dict[str, dict[str, object]] = {
    "default": {},
    "cpu": {
        "keeps_function_bodies": False,
        "gqa_dtypes": {F32},
        "qkv_pack_dtypes": {F32},
        "default_int4_accuracy_level": 4,
        "dtypes": {F32, F16},
    },
    "cuda": {
        "keeps_function_bodies": False,
        "gqa_dtypes": {F16, BF16},
        "qkv_pack_dtypes": {F16, BF16},
        "supports_packed_multi_head_attention": True,
        "provider_options": {
            "enable_cuda_graph": "0",
            "enable_skip_layer_norm_strict_mode": "1",
        },
    },
    "dml": {
        "keeps_function_bodies": False,
        "gqa_dtypes": {F16},
        "supports_fused_rope": False,
        "supports_fused_moe": False,
        "dtypes": {F32, F16},
        "max_opset": 21,
    },
    "webgpu": {
        "keeps_function_bodies": False,
        "gqa_dtypes": {F32, F16},
        "qkv_pack_dtypes": {F32, F16},
        "supports_fused_matmul": False,
        "supports_fused_moe": False,
        "default_int4_accuracy_level": 4,
        "provider_options": {"enableGraphCapture": "0", "validationMode": "basic"},
        "dtypes": {F32, F16},
    },
    "mlx": {
        "keeps_function_bodies": False,
        "gqa_dtypes": {F32, F16, BF16},
        "supports_fused_matmul": False,
        "supports_fused_moe": False,
        "supports_packed_multi_head_attention": True,
    },
    "trt-rtx": {
        "keeps_function_bodies": False,
        "gqa_dtypes": {F16, BF16},
        "qkv_pack_dtypes": {F16, BF16},
        "supports_skip_layer_norm": False,
        "supports_fused_matmul": False,
        "supports_fused_moe": False,
        "provider_options": {"enable_cuda_graph": "1"},
        "enable_graph_capture": True,
    },
    "onnx-standard": {
        "supports_fused_rope": False,
        "supports_skip_layer_norm": False,
        "supports_fused_matmul": False,
        "supports_fused_moe": False,
        "allowed_domains": {""},
    },
}


def test_there_are_these_eight_in_the_order_of_the_documentation() -> None:
    assert [caps.name for caps in BUILTIN_EPS] == list(EXPECTED)
    assert set(EXPECTED) <= set(ep_registry)


@pytest.mark.parametrize("caps", BUILTIN_EPS, ids=lambda caps: caps.name)
def test_values(caps: EpCapabilities) -> None:
    plain = EpCapabilities(name=caps.name)
    differing = {
        field.name: getattr(caps, field.name)
        for field in dataclasses.fields(caps)
        if field.name != "lacks" and getattr(caps, field.name) != getattr(plain, field.name)
    }
    assert differing == EXPECTED[caps.name]


CPU_LACKS = "BiasGelu FastGelu FusedMatMul Gelu MoE QuickGelu"
# Operators of com.microsoft are marked by "ms:", attributes come after a dot.
LACKS: dict[str, tuple[tuple[str, set[ir.DataType]], ...]] = {
    "default": tuple((f"ms:{name}", {F16, BF16}) for name in CPU_LACKS.split()),
    "cpu": tuple((f"ms:{name}", {F16, BF16}) for name in CPU_LACKS.split()),
    "cuda": (("ms:PackedMultiHeadAttention", {BF16}), ("ms:QMoE", {F32})),
    "dml": tuple(
        (name, set())
        for name in [
            "Attention",
            "Gelu",
            "RMSNormalization",
            "RotaryEmbedding",
            "Swish",
            "TensorScatter",
            "ms:CausalConvWithState",
            "ms:LinearAttention",
        ]
    ),
    "webgpu": tuple(
        (name, set())
        for name in ["Attention", "Or", "Swish", "TensorScatter", "ms:GroupQueryAttention.softcap"]
    ),
    "mlx": (("ms:FastGelu", set()), ("ms:QuickGelu", set())),
    "trt-rtx": (
        ("Attention.present_key", set()),
        ("ms:BiasGelu", set()),
        ("ms:FastGelu", set()),
        ("ms:QuickGelu", set()),
    ),
    "onnx-standard": (),
}


@pytest.mark.parametrize("caps", BUILTIN_EPS, ids=lambda caps: caps.name)
def test_lacks(caps: EpCapabilities) -> None:
    found = tuple(
        (
            "ms:" * (lack.domain == "com.microsoft")
            + lack.op_type
            + f".{lack.attribute}" * (lack.attribute is not None),
            set(lack.dtypes),
        )
        for lack in caps.lacks
    )
    assert found == LACKS[caps.name]
    assert all(lack.reason for lack in caps.lacks)
