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
        "fast_loops": False,
        "gqa_dtypes": {F16, BF16},
        "qkv_pack_dtypes": {F16, BF16},
        "supports_packed_multi_head_attention": True,
        "provider_options": {
            "enable_cuda_graph": "0",
            "enable_skip_layer_norm_strict_mode": "1",
        },
        "max_tensor_elements": 2_147_483_647,
    },
    "dml": {
        "keeps_function_bodies": False,
        "fast_loops": False,
        "gqa_dtypes": {F16},
        "supports_fused_rope": False,
        "supports_fused_moe": False,
        "dtypes": {F32, F16},
        "max_opset": 21,
    },
    "webgpu": {
        "keeps_function_bodies": False,
        "fast_loops": False,
        "gqa_dtypes": {F32, F16},
        "qkv_pack_dtypes": {F32, F16},
        "supports_fused_matmul": False,
        "supports_fused_moe": False,
        "default_int4_accuracy_level": 4,
        "provider_options": {"enableGraphCapture": "0", "validationMode": "basic"},
        "dtypes": {F32, F16},
        "max_buffer_bytes": 268_435_456,
    },
    "mlx": {
        "keeps_function_bodies": False,
        "fast_loops": False,
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
        if field.name not in ("lacks", "runtime_names")
        and getattr(caps, field.name) != getattr(plain, field.name)
    }
    assert differing == EXPECTED[caps.name]


RUNTIME_NAMES: dict[str, tuple[str | None, str | None, str | None]] = {
    "default": ("CPUExecutionProvider", "cpu", None),
    "cpu": ("CPUExecutionProvider", "cpu", None),
    "cuda": ("CUDAExecutionProvider", "cuda", "enable_cuda_graph"),
    "dml": ("DmlExecutionProvider", "dml", "enable_graph_capture"),
    "webgpu": ("WebGpuExecutionProvider", "webgpu", "enableGraphCapture"),
    "mlx": (None, None, None),
    "trt-rtx": ("NvTensorRTRTXExecutionProvider", "NvTensorRtRtx", "enable_cuda_graph"),
    "onnx-standard": ("CPUExecutionProvider", "cpu", None),
}


@pytest.mark.parametrize("caps", BUILTIN_EPS, ids=lambda caps: caps.name)
def test_runtime_names(caps: EpCapabilities) -> None:
    assert dataclasses.astuple(caps.runtime_names) == RUNTIME_NAMES[caps.name]


@pytest.mark.parametrize("caps", BUILTIN_EPS, ids=lambda caps: caps.name)
def test_options_and_flag_agree_on_graph_capture(caps: EpCapabilities) -> None:
    option = caps.runtime_names.genai_graph_capture
    if option in caps.provider_options:
        assert caps.provider_options[option] == str(int(caps.enable_graph_capture))


CPU_LACKS: dict[str, set[ir.DataType]] = {
    "ms:BiasGelu": {F16, BF16},
    "ms:CausalConvWithState": {F16, BF16},
    "ms:FastGelu": {F16, BF16},
    "ms:FusedMatMul": {F16, BF16},
    "ms:GatherBlockQuantized": {BF16},
    "ms:Gelu": {F16, BF16},
    "ms:MatMulNBits": {BF16},
    "ms:MoE": {F16, BF16},
    "ms:QMoE.expert_weight_bits=8, accuracy_level=0": set(),
    "ms:QuickGelu": {F16, BF16},
}
# Operators of com.microsoft are marked by "ms:", attributes come after a dot, the element types of
# an input after a colon.
LACKS: dict[str, tuple[tuple[str, set[ir.DataType]], ...]] = {
    "default": tuple(CPU_LACKS.items()),
    "cpu": tuple(CPU_LACKS.items()),
    "cuda": (
        ("ms:GroupQueryAttention.attention_bias", set()),
        ("ms:PackedMultiHeadAttention", {BF16}),
        ("ms:QMoE", {F32}),
        ("ms:QMoE.block_size=16", set()),
        ("ms:QMoE.block_size=256", set()),
        ("ms:QMoE.block_size=32", set()),
    ),
    "dml": tuple(
        (name, set())
        for name in [
            "Attention",
            "Gelu",
            "Loop",
            "RMSNormalization",
            "RotaryEmbedding",
            "Swish",
            "TensorScatter",
            "ms:CausalConvWithState",
            "ms:GatherBlockQuantized",
            "ms:GroupQueryAttention.attention_bias",
            "ms:GroupQueryAttention.head_sink",
            "ms:GroupQueryAttention.local_window_size",
            "ms:GroupQueryAttention.softcap",
            "ms:LinearAttention",
        ]
    ),
    "webgpu": tuple(
        (name, set())
        for name in [
            "Attention",
            "Loop",
            "Or",
            "Swish",
            "TensorScatter",
            "ms:GroupQueryAttention.softcap",
        ]
    ),
    "mlx": tuple(
        (f"ms:{name}", set())
        for name in [
            "FastGelu",
            "GroupQueryAttention.head_sink",
            "GroupQueryAttention.local_window_size",
            "GroupQueryAttention.seqlens_k",
            "GroupQueryAttention.softcap",
            "QuickGelu",
        ]
    ),
    "trt-rtx": (
        ("Attention.present_key", set()),
        ("ms:BiasGelu", set()),
        ("ms:CausalConvWithState", set()),
        ("ms:FastGelu", set()),
        ("ms:GatherBlockQuantized", set()),
        ("ms:GroupQueryAttention.attention_bias", set()),
        ("ms:GroupQueryAttention.head_sink", set()),
        ("ms:LinearAttention", set()),
        ("ms:MatMulNBits", set()),
        ("ms:QuickGelu", set()),
    ),
    "onnx-standard": (("Attention.attn_mask:BOOL", set()),),
}


@pytest.mark.parametrize("caps", BUILTIN_EPS, ids=lambda caps: caps.name)
def test_lacks(caps: EpCapabilities) -> None:
    found = tuple(
        (
            "ms:" * (lack.domain == "com.microsoft")
            + lack.op_type
            + f".{lack.attribute}" * (lack.attribute is not None)
            + "".join(f":{dtype.name}" for dtype in sorted(lack.input_dtypes)),
            set(lack.dtypes),
        )
        for lack in caps.lacks
    )
    assert found == LACKS[caps.name]
    assert all(lack.reason for lack in caps.lacks)
